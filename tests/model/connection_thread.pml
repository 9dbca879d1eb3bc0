/* How two ranks of different hosts come to their links (csrc/core/transport/{dial,link}/{connection_thread,data_links,dialer,
 * acceptor}): each has a thread that drives and a connection thread. Rank 1 calls rank 0, twice (two
 * streams); a connection thread has room for one call at a time, so that one order has to wait for the other.
 *
 * Checked: both threads of both ranks reach their end. -DPROGRAM, -DMISTAKE: as in seat.pml.
 *
 * What a mutex guards is one step: nobody waits for anything in there.
 */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#include "connection_thread_programs.pml"

#define LINKS 2
#define ALL 3 /* a set of links is a mask */

/* What is on the way of a call, by link. */
mtype = { nothing, called, answered, proof, proven_by_both, hung_up, caller_gone };
mtype wire[LINKS] = nothing;
bit listening = 1;    /* rank 0's acceptor */

bit orders_came[2];   /* an eventfd, readable */
bit news[2];          /* the same; DataLinks::watched() */
byte orders;          /* rank 1: ConnectionThread::orders_ */
byte proven[2];       /* ConnectionThread::proven_ */
bit failure[2];       /* ConnectionThread::failure_ */
bit stopping[2];
bit over[2];          /* the connection thread has returned */
bit gone[2];          /* the rank has ended, which rank 0 hears on another way; a caller is hung up on */

/* --- the connection thread ------------------------------------------------------------------- */

/* ConnectionThread::deliver() */
inline deliver(r, link) {
#if MISTAKE == 1
  news[r] = 1;
  proven[r] = proven[r] | (1 << link);
#elif MISTAKE == 2
  proven[r] = proven[r] | (1 << link);
#else
  proven[r] = proven[r] | (1 << link);
  news[r] = 1;
#endif
}

/* ConnectionThread::start_dialing(): one at a time (kDialersMax). */
inline start_dialing(r) {
  atomic {
    do
    :: r == 1 && orders && calls == 0 ->
      link = (orders & 1 -> 0 : 1);
      orders = orders & ~(1 << link);
      calls = calls | (1 << link);
      wire[link] = (listening -> called : hung_up)
    :: else -> break
    od;
    link = 0
  }
}

/* ConnectionThread::accept_connections(), Acceptor::poll(): hears the first word and the proof. */
inline accept_connections(r) {
  do
  :: atomic { link < LINKS && wire[link] == called -> wire[link] = answered; link++ }
  :: atomic { link < LINKS && wire[link] == proof -> wire[link] = proven_by_both };
    deliver(r, link);
    link++
  :: atomic { link < LINKS && wire[link] != called && wire[link] != proof -> link++ }
  :: atomic { link == LINKS -> link = 0; break }
  od
}

/* ConnectionThread::advance_dialers(), Dialer::advance() */
#define MINE(link) (calls & (1 << link))
inline advance_dialers(r) {
  do
  :: atomic { link < LINKS && MINE(link) && wire[link] == answered -> wire[link] = proof };
    deliver(r, link);
    end_call(r, link);
    link++
#if MISTAKE == 16
  :: atomic {
      link < LINKS && MINE(link) && wire[link] == hung_up -> orders = orders | (1 << link)
    };
#else
  :: atomic { link < LINKS && MINE(link) && wire[link] == hung_up -> failure[r] = 1 };
#endif
#if MISTAKE != 3 && MISTAKE != 16
    news[r] = 1; /* ConnectionThread::fail() */
#endif
    end_call(r, link);
    link++
  :: atomic {
      link < LINKS && !(MINE(link) && (wire[link] == answered || wire[link] == hung_up)) -> link++
    }
  :: atomic { link == LINKS -> link = 0; break }
  od
}

inline end_call(r, link) {
  calls = calls & ~(1 << link);
#if MISTAKE != 4
  orders_came[r] = 1 /* there is room for the next */
#endif
}

#if MISTAKE == 5
#define A_CALLER false
#else
#define A_CALLER (wire[0] == called || wire[0] == proof || wire[1] == called || wire[1] == proof)
#endif
#if MISTAKE == 6
#define AN_ANSWER false
#else
#define AN_ANSWER ((calls & 1 && (wire[0] == answered || wire[0] == hung_up)) || \
                   (calls & 2 && (wire[1] == answered || wire[1] == hung_up)))
#endif

/* ConnectionThread::run() */
proctype connection_thread(byte r) {
  byte link, calls;
  do
  ::
#if MISTAKE == 7 /* the eventfd is read after the look at what it was raised for */
    if
    :: stopping[r] -> break
    :: else
    fi;
    start_dialing(r);
    orders_came[r] = 0;
#elif MISTAKE == 8 /* the same, for the end alone */
    if
    :: stopping[r] -> break
    :: else
    fi;
    orders_came[r] = 0;
    start_dialing(r);
#else
#if MISTAKE != 14
    orders_came[r] = 0;
#endif
    if
    :: stopping[r] -> break
    :: else
    fi;
    start_dialing(r);
#endif
    if
    :: r == 0 -> accept_connections(r)
    :: else -> advance_dialers(r)
    fi;
    /* ConnectionThread::wait() */
    (orders_came[r] || (r == 0 && A_CALLER) || (r == 1 && AN_ANSWER))
  od;
  atomic { /* its sockets are closed */
    if
    :: r == 0 -> listening = 0
    :: else
    fi;
    do
    :: link < LINKS ->
      if
      :: r == 0 && (wire[link] == called || wire[link] == answered || wire[link] == proof) ->
        wire[link] = hung_up
      :: r == 1 && (calls & (1 << link)) -> wire[link] = caller_gone
      :: else
      fi;
      link++
    :: else -> break
    od;
    link = 0
  };
  over[r] = 1
}

/* --- whoever drives ----------------------------------------------------------------------------- */

#if MISTAKE == 13
#define LINKS_MISSING (wanted && links != ALL)
#else
#define LINKS_MISSING (wanted & ~links)
#endif

proctype driver(byte r) {
  byte links, wanted;
  do
  :: wanted != ALL -> /* DataLinks::find() of the next */
    if
    :: r == 1 -> /* ConnectionThread::dial() */
      orders = orders | (wanted + 1);
#if MISTAKE != 9
      orders_came[r] = 1
#endif
    :: else
    fi;
    wanted = (wanted << 1) | 1
  :: LINKS_MISSING -> /* DataLinks::advance(), ConnectionThread::take() */
#if MISTAKE == 10
    links = links | proven[r];
    news[r] = 0;
#else
#if MISTAKE != 15
    news[r] = 0;
#endif
    links = links | proven[r];
#endif
    if
    :: failure[r] -> break
    :: !failure[r] && (links & wanted) != wanted -> /* epoll_wait() */
      if
      :: news[r]
#if ENDS
      :: r == 0 && gone[1] -> break /* who does not call either */
#endif
      fi
    :: !failure[r] && (links & wanted) == wanted
    fi
  :: links == ALL -> break
#if ENDS
  :: r == MAY_END -> break /* an error elsewhere, or the program's end */
#endif
  od;
  gone[r] = 1;
  /* DataLinks::close_all(), ~ConnectionThread() */
#if MISTAKE == 11
  orders_came[r] = 1;
  stopping[r] = 1;
#elif MISTAKE == 12
  stopping[r] = 1;
#else
  stopping[r] = 1;
  orders_came[r] = 1;
#endif
  over[r]
}

init {
  atomic { run connection_thread(0); run connection_thread(1); run driver(0); run driver(1) }
}
