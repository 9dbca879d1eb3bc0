/* How the ranks of two hosts meet (csrc/core/transport/join/{local_meeting,meeting}). Ranks 0 and 1 are on
 * host 0, ranks 2 and 3 on host 1; 0 and 2 are the first ranks. Each host meets at a Unix socket, then
 * rank 2 introduces its host to rank 0, which tells it who is where; each first rank tells its host.
 *
 * Checked: every rank ends, joined or with an error; all join when nothing is wrong; where a rank does
 * not fit, none joins. -DPROGRAM, -DMISTAKE: as in seat.pml.
 *
 * A deadline is over only where the rank that is waited for has ended (died, or gave up): nobody may
 * need one to get on with those that live. A socket is closed by its owner's end unless it has joined;
 * what was sent before is still read.
 */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#include "meeting_programs.pml"

#define RANKS 4
#define HOST(r) ((r) / 2)
#define SECOND(r) ((r) + 1) /* the other rank of a first rank's host */
#define FIRST(r) ((r) - 1)

mtype = { hello, other_hello, control, introduction, other_introduction, roll, refused };
mtype = { running, joined, failed, dead };

chan up[RANKS] = [2] of { mtype };   /* from a second rank to its first; nobody waits for room */
chan down[RANKS] = [2] of { mtype }; /* back */
chan line = [1] of { mtype };        /* from rank 2 to rank 0, over TCP */
chan back = [1] of { mtype };
bit bound[2];      /* the socket of the host's first rank is there */
bit listening;     /* rank 0, for the other host */
mtype end[RANKS] = running;
#define OVER(r) (end[r] == failed || end[r] == dead)
byte deaths = DEATHS;

/* --- a local rank that is not the first --------------------------------------------------------- */

/* Waits for `what`; the socket's end is an end for the waiter as well. */
#if MISTAKE == 1
#define CLOSED_BY_FIRST(r) false
#else
#define CLOSED_BY_FIRST(r) (OVER(FIRST(r)) && empty(down[r]))
#endif
#if MISTAKE == 2
#define CLOSED_BY_SECOND(r) false
#else
#define CLOSED_BY_SECOND(r) (OVER(SECOND(r)) && empty(up[SECOND(r)]))
#endif

inline may_die(r) { atomic { deaths > 0 -> deaths--; end[r] = dead } }

proctype second(byte r) {
  mtype answer;
  /* connect_to_leader() */
  if
  :: bound[HOST(r)]
#if MISTAKE != 3
  :: OVER(FIRST(r)) && !bound[HOST(r)] -> end[r] = failed; goto through /* its deadline */
#endif
  :: may_die(r); goto through
  fi;
  /* join_leader() */
  if
  :: r == MISFIT -> up[r]!other_hello
  :: r != MISFIT -> up[r]!hello
  :: may_die(r); goto through
  fi;
  if
  :: down[r]?answer
  :: CLOSED_BY_FIRST(r) -> end[r] = failed; goto through
  :: may_die(r); goto through
  fi;
  if
  :: answer == refused -> end[r] = failed; goto through
  :: answer == control
  fi;
  /* Meeting::let_first_speak() */
  if
  :: up[r]!introduction
  :: may_die(r); goto through
  fi;
  if
  :: down[r]?answer
  :: CLOSED_BY_FIRST(r) -> end[r] = failed; goto through
  :: may_die(r); goto through
  fi;
  if
  :: answer == roll -> end[r] = joined
  :: answer == refused -> end[r] = failed
  fi;
through:
  skip
}

/* --- the first rank of a host ------------------------------------------------------------------- */

/* Leader::run(); `fine` tells whether its host has met. */
inline meet_on_host(r) {
  bound[HOST(r)] = 1;
  if
  :: up[SECOND(r)]?what ->
    if
    :: what == hello -> fine = 1; down[SECOND(r)]!control /* connect_everybody() */
    :: what == other_hello ->
#if MISTAKE == 4
      fine = 1; down[SECOND(r)]!control
#elif MISTAKE == 5 /* told nothing, and the socket stays open */
      stays = 1
#else
      down[SECOND(r)]!refused
#endif
    fi
  :: CLOSED_BY_SECOND(r)
  :: may_die(r)
  fi;
  bound[HOST(r)] = 0
}

/* Meeting::gather_host() */
inline gather_host(r) {
  fine = 0;
  if
  :: up[SECOND(r)]?what -> fine = 1
  :: CLOSED_BY_SECOND(r)
  :: may_die(r)
  fi
}

/* Meeting::lead(), of rank 0 */
inline lead() {
  fine = 0;
  listening = 1;
  if
  :: line?what ->
#if MISTAKE == 6
    fine = 1; back!roll
#else
    if
    :: what == introduction -> fine = 1; back!roll
#if MISTAKE == 7
    :: what == other_introduction -> stays = 1
#else
    :: what == other_introduction -> back!refused
#endif
    fi
#endif
#if MISTAKE != 8
  :: OVER(2) && empty(line) /* Meeting::nobody_came(), or the connection was closed */
#endif
  :: may_die(0)
  fi
}

/* Meeting::follow(), of rank 2 */
inline follow() {
  fine = 0;
  if
  :: listening ->
    if
    :: MISFIT == 2 -> line!other_introduction
    :: MISFIT != 2 -> line!introduction
    :: may_die(2)
    fi;
    if
    :: end[2] == dead
    :: end[2] != dead ->
      if
      :: back?what -> fine = (what == roll)
#if MISTAKE != 9
      :: OVER(0) && empty(back)
#endif
      :: may_die(2)
      fi
    fi
#if MISTAKE != 10
  :: OVER(0) && !listening /* nobody answers the call until the deadline */
#endif
  :: may_die(2)
  fi
}

/* Meeting::speak_for_host() and what comes before and after it. */
proctype first(byte r) {
  mtype what;
  bit fine, stays;
  meet_on_host(r);
  if
  :: end[r] == running && fine ->
    gather_host(r);
    if
    :: end[r] == running && fine ->
      if
      :: r == 0 -> lead()
      :: r == 2 -> follow()
      fi
    :: else
    fi;
    if /* tells its host */
    :: end[r] == dead
    :: end[r] == running && fine ->
#if MISTAKE != 11
      down[SECOND(r)]!roll;
#endif
      end[r] = joined
    :: end[r] == running && !fine ->
#if MISTAKE == 12
      stays = 1;
#else
      down[SECOND(r)]!refused;
#endif
      end[r] = (stays -> joined : failed)
    fi
  :: end[r] == running && !fine -> end[r] = (stays -> joined : failed)
  :: end[r] == dead
  fi;
  if
  :: r == 0 && !stays -> listening = 0
  :: else
  fi
}

init {
  atomic { run first(0); run first(2); run second(1); run second(3) };
  /* Everybody has ended. */
  (end[0] != running && end[1] != running && end[2] != running && end[3] != running);
  if
  :: MISFIT == RANKS && deaths == DEATHS ->
    assert(end[0] == joined && end[1] == joined && end[2] == joined && end[3] == joined)
  :: MISFIT != RANKS ->
    assert(end[0] != joined && end[1] != joined && end[2] != joined && end[3] != joined)
  :: else
  fi
}
