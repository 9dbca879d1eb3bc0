/* The engine's seat: who drives a rank, who sleeps, and who wakes whom (csrc/core/engine/{engine,seat,cycle},
 * transport/{doorbell,peer_bells,shm_log}). One host. tests/README.md, "Models", tells how to run it.
 *
 * Checked: no reachable state in which some user thread is not through its program and nothing can
 * go on (an invalid end state of spin's). No wait has a timeout here, so a lost wake-up is such a state.
 * And no run comes back to a state that it has been in: then every run ends, and so does every wait.
 *
 * Every step of a process is one access to what others see, or several of which a comment says why
 * they may be one. Promela is sequentially consistent: a fence that is left out is modelled as the
 * reordering that it forbids, the load before the store.
 *
 *   -DPROGRAM=name    what the threads do, see seat_programs.pml
 *   -DMISTAKE=n       a planted mistake; test_model.py has a sentence for each
 */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#include "seat_programs.pml"
#ifndef RANKS
#define RANKS 2
#endif
#ifndef OVERLAP
#define OVERLAP 0
#endif
#ifndef CELLS
#define CELLS 15 /* of the log's ring; 15: never full */
#endif
#define LISTENERS (OVERLAP || CELLS < 15)
#ifndef SLOW_WRITERS
#define SLOW_WRITERS 0 /* a frame's place is taken in one step, and the frame written in another */
#endif
#ifndef OUTSIDE
#define OUTSIDE(r) 0 /* operations of process sets that this rank is no member of */
#endif
#define INSIDE(r) (7 & ~(OUTSIDE(r)))

/* A set of operations is a mask of bits 1, 2, 4; a set of ranks or threads as well. A frame holds its
 * writer in the upper half, the requests for operations in the lower; bit 8 is the goodbye (kLeave). */
#define LEAVE 8
#define FRAME(rank, what) (((rank) << 4) | (what))
#define FRAMES 8 /* more than any program leaves unread */
#define RETIRED 255

/* --- shared memory ------------------------------------------------------------------------------ */
byte log[FRAMES];     /* from what the slowest rank has not read: where it lies decides nothing */
byte tail;            /* cells handed out to writers */
#if SLOW_WRITERS
byte place[RANKS];    /* one more than where the frame lies that this rank writes; 0: none */
byte writes[RANKS];   /* what will be in it */
#endif
byte cursor[RANKS];   /* what a rank has read (ShmLog::readers_) */
byte announced[RANKS];/* Doorbell::sleepers of `waiters`, as a set of threads */
byte rung[RANKS];     /* those of them for whom `rings` is not their ticket any more */
byte drivers[RANKS];  /* RankFlags::drivers */
bit listens[RANKS];   /* RankFlags::background_listens */
bit bell[RANKS];      /* the eventfd is readable */
byte part[RANKS];     /* operations of which this rank has done what the others wait for (copied_in); in
                       * the upper half, of which it has done what it can only after that (reduced) */
bit record;           /* the FailureRecord is written */
#if FAR
bit arrived;          /* bytes of another host, without which no operation ends on rank 0 */
#define ARRIVED(r) (r != 0 || arrived -> 255 : 0)
#else
#define ARRIVED(r) 255
#endif

/* --- of one process ----------------------------------------------------------------------------- */
bit seat[RANKS];      /* Seat::mutex_ is taken */
byte wanted[RANKS];   /* Seat::wanted_ */
byte queue[RANKS];    /* SubmissionQueue */
bit closed[RANKS];    /* SubmissionQueue::close() */
bit stopping[RANKS];
byte table[RANKS];    /* TensorTable: taken from the queue; finished ones stay in here, see `done` */
byte unsent[RANKS];   /* requests that the full log refused */
byte asked[RANKS * RANKS]; /* Negotiator: by reader, then by writer: requests that were read */
bit departed[RANKS];  /* Negotiator: a goodbye was read */
byte started[RANKS];  /* Backends: operations that were agreed */
byte done[RANKS];     /* handles that are done, with or without an error */
bit finished_any[RANKS];
bit failed[RANKS];    /* Cycle::failure_ */
bit ended[RANKS];     /* the background thread has returned */

#define MIN(a, b) ((a) < (b) -> (a) : (b))
#if RANKS == 2
#define SLOWEST MIN(cursor[0], cursor[1])
#define EVERYONE_ASKED(r) ((asked[(r) * 2] | OUTSIDE(0)) & (asked[(r) * 2 + 1] | OUTSIDE(1)) & \
    INSIDE(r))
#define EVERY_PART(r) ((part[0] | OUTSIDE(0)) & (part[1] | OUTSIDE(1)) & ARRIVED(r))
#else
#define SLOWEST MIN(MIN(cursor[0], cursor[1]), cursor[2])
#define EVERYONE_ASKED(r) ((asked[(r) * 3] | OUTSIDE(0)) & (asked[(r) * 3 + 1] | OUTSIDE(1)) & \
    (asked[(r) * 3 + 2] | OUTSIDE(2)) & INSIDE(r))
#define EVERY_PART(r) ((part[0] | OUTSIDE(0)) & (part[1] | OUTSIDE(1)) & (part[2] | OUTSIDE(2)) & \
    ARRIVED(r))
#endif
#define ROOM (tail < CELLS + SLOWEST)
#define UNREAD(r) (cursor[r] < tail) /* ShmLog::unread() */
#if SLOW_WRITERS
#define READABLE(r) (UNREAD(r) && log[cursor[r]] != 0) /* ShmLog::readable() */
#else
#define READABLE(r) UNREAD(r)
#endif
#define UNFINISHED(r) (started[r] & ~done[r])
/* A cycle would move something. Where the engine looks again and again without sleeping, the model
 * waits for this: a cycle that moves nothing changes nothing. */
#define CAN_MOVE(r) (queue[r] || (record && !failed[r]) || (!failed[r] && (READABLE(r) || \
    (unsent[r] && ROOM) || (MAY_DO(r) & ~part[r]) || (UNFINISHED(r) & ENDS(r)))))
/* Cycle::blocked_on() */
#if TWO_ROUNDS
#define BLOCKED_ON(r, q) (UNFINISHED(r) & ~(part[q] & (part[q] >> 4 | ~(part[r] >> 4))))
#define ENDS(r) (EVERY_PART(r) >> 4)
#define MAY_DO(r) (started[r] | ((started[r] & EVERY_PART(r)) << 4))
#else
#define BLOCKED_ON(r, q) (UNFINISHED(r) & ~(part[q] | OUTSIDE(q)))
#define ENDS(r) EVERY_PART(r)
#define MAY_DO(r) (started[r])
#endif

/* --- bells -------------------------------------------------------------------------------------- */

/* Doorbell::wake_sleepers(): the load of `sleepers` and the increment of `rings` are one step: who
 * announces itself in between is woken for nothing, and that only helps. */
inline wake(rank) { rung[rank] = rung[rank] | announced[rank] }

/* Cycle::ring(): whom the news concern, and who listens. One step for all peers: a load that comes
 * later finds more sleepers, or fewer that have woken by themselves, and these look again. `early` is
 * what a load before the publication found. */
#define EVERYTHING 7
#if MISTAKE == 88 /* the ranks of the operations alone */
#define HEARS(q) (listens[q] && (news & INSIDE(q)))
#else
#define HEARS(q) listens[q]
#endif
inline ring_all(r) { news = EVERYTHING; ring(r) }
inline ring(r) {
  d_step {
#if MISTAKE == 1
    q = 0;
    do
    :: q < RANKS -> rung[q] = rung[q] | early[q]; early[q] = 0; q++
    :: else -> break
    od;
#else
    q = 0;
    do
    :: q < RANKS ->
      if
      :: q != r ->
        if
        :: news & INSIDE(q) -> wake(q)
        :: else
        fi;
#if LISTENERS
        if
        :: HEARS(q) -> listens[q] = 0; bell[q] = 1
        :: else
        fi
#endif
      :: else
      fi;
      q++
    :: else -> break
    od;
#endif
    q = 0; news = 0
  }
}

/* Without the fence in ring() its loads may come before the publication. */
#if MISTAKE == 1
inline load_sleepers_early(r) {
  d_step {
    q = 0;
    do
    :: q < RANKS ->
      if
      :: q != r -> early[q] = announced[q]
      :: else
      fi;
      q++
    :: else -> break
    od;
    q = 0
  }
}
#define LOAD_SLEEPERS_EARLY(r) load_sleepers_early(r);
#else
#define LOAD_SLEEPERS_EARLY(r)
#endif

#define IDLE_PEER(r) (drivers[1 - r] == 0 -> 1 << (1 - r) : 0) /* of two ranks */

/* PeerBells::ask_to_drive() for each of `blockers`. */
inline ask_to_drive(ranks) {
  d_step {
    q = 0;
    do
    :: q < RANKS ->
      if
      :: (ranks & (1 << q)) && drivers[q] == 0 -> bell[q] = 1
      :: else
      fi;
      q++
    :: else -> break
    od;
    q = 0; ranks = 0
  }
}

/* --- a cycle, by whoever has the seat ----------------------------------------------------------- */

/* Cycle::publish(). The drain of the queue needs no step of its own: who pushes between
 * it and the append finds the seat taken, as before. */
inline publish(r) {
  d_step {
    if
    :: failed[r] ->
      if
      :: queue[r] -> /* it failed between a submitter's check and its push */
        done[r] = done[r] | queue[r]; wake(r); moved = 1
#if MISTAKE != 84
        ; queue[r] = 0
#endif
      :: else
      fi
    :: else ->
#if CELLS < 15
      late = unsent[r] != 0;
#endif
      unsent[r] = unsent[r] | queue[r]; table[r] = table[r] | queue[r]; queue[r] = 0;
      append(r)
#if CELLS < 15
      ;
      late = 0
#endif
    fi
  }
}

/* FrameExchange::send(), ShmLog::try_append() */
inline append(r) {
  if
  :: unsent[r] && ROOM ->
#if SLOW_WRITERS
    place[r] = tail + 1; writes[r] = FRAME(r, unsent[r]);
#else
    log[tail] = FRAME(r, unsent[r]);
#endif
    tail++; moved = 1;
#if CELLS < 15 && MISTAKE != 75
    if /* who sleeps here has looked for whom it is stuck on while that was in no order */
    :: late -> wake(r)
    :: else
    fi;
#endif
#if MISTAKE != 22
    news = news | unsent[r];
#endif
    unsent[r] = 0
  :: else
  fi
}
#if SLOW_WRITERS
#define FINISH_FRAME(r) \
  atomic { \
    if \
    :: place[r] -> log[place[r] - 1] = writes[r]; place[r] = 0; writes[r] = 0 \
    :: else \
    fi \
  }
#else
#define FINISH_FRAME(r) skip
#endif

/* Cycle::ask_for_room(). The log is full: the background thread of this rank listens, so that it appends when there is room,
 * whoever drives meanwhile; and the ranks that have to make room are called, this one perhaps among
 * them. */
#if MISTAKE == 74
#define NOT_SELF(q) (q != r)
#else
#define NOT_SELF(q) (true)
#endif
#if MISTAKE == 87
#define NOT_READ(q) (true)
#else
#define NOT_READ(q) (cursor[q] < tail)
#endif
#define REFUSED(r) (unsent[r] && !failed[r])
inline ask_for_room(r) {
#if MISTAKE != 70
  listens[r] = 1;
#endif
#if MISTAKE != 71
  d_step { late = 1; append(r); late = 0 };
#endif
#if MISTAKE != 72
  d_step {
    q = 0;
    do
    :: q < RANKS ->
#if MISTAKE != 73
      if
      :: unsent[r] && q != r && NOT_READ(q) -> wake(q)
      :: else
      fi;
#endif
      if
      :: unsent[r] && NOT_READ(q) && drivers[q] == 0 && NOT_SELF(q) -> bell[q] = 1
      :: else
      fi;
      q++
    :: else -> break
    od;
    q = 0
  }
#endif
}

/* Cycle::read_frames() and Negotiator::handle_frame(). One step: what is read changes this process
 * alone, and a reader that reads later reads at least as much. */
inline read_log(r) {
  d_step {
    do
    :: READABLE(r) ->
      q = log[cursor[r]] >> 4;
      asked[r * RANKS + q] = asked[r * RANKS + q] | (log[cursor[r]] & 7);
      if
      :: departed[r] -> skip
      :: else ->
        if /* start_execution(): "shut down in the middle of" */
        :: EVERYONE_ASKED(r) & done[r] & ~started[r] -> lost = 1
        :: else
        fi;
#if CELLS < 15
        if /* Dispatcher::handle() sends, too */
        :: EVERYONE_ASKED(r) & ~started[r] ->
          late = unsent[r] != 0; append(r); late = 0
        :: else
        fi;
#endif
        started[r] = started[r] | EVERYONE_ASKED(r)
      fi;
      if
      :: log[cursor[r]] & LEAVE -> departed[r] = 1
      :: else
      fi;
      if /* what needs a rank that has left ends with an error */
      :: departed[r] && (asked[r * RANKS + r] & ~started[r] & ~done[r]) ->
        done[r] = done[r] | (asked[r * RANKS + r] & ~started[r]); finished_any[r] = 1
      :: else
      fi;
      cursor[r]++; moved = 1
    :: else -> break
    od;
    forget_what_all_have_read();
    q = 0
  }
}

/* The log counts from its slowest reader. */
inline forget_what_all_have_read() {
  do
  :: SLOWEST != 0 && SLOWEST != RETIRED ->
    q = 0;
    do
    :: q + 1 < tail -> log[q] = log[q + 1]; q++
    :: else -> break
    od;
    log[q] = 0;
    tail--;
    q = 0;
    do
    :: q < RANKS ->
#if SLOW_WRITERS
      if
      :: place[q] -> place[q]--
      :: else
      fi;
#endif
      if
      :: cursor[q] != RETIRED -> cursor[q]--
      :: else
      fi;
      q++
    :: else -> break
    od
  :: else -> break
  od
}

/* Backends::advance(). One step: after its own part the rank moves, so it comes back to look at the
 * others' parts behind the fence of ring(). */
inline advance(r) {
  d_step {
    if
    :: MAY_DO(r) & ~part[r] ->
#if MISTAKE != 23
      news = news | (MAY_DO(r) & ~part[r]) | ((MAY_DO(r) & ~part[r]) >> 4);
#endif
      part[r] = part[r] | MAY_DO(r); moved = 1
    :: else
    fi;
    if
    :: UNFINISHED(r) & ENDS(r) ->
      done[r] = done[r] | (started[r] & ENDS(r)); finished_any[r] = 1; moved = 1
    :: else
    fi
  }
}

/* Cycle::fail() */
inline fail(r) {
#if MISTAKE == 40 /* the alarm before the record */
  alarm(r);
#endif
  d_step {
    record = 1; failed[r] = 1;
    done[r] = done[r] | table[r] | queue[r]; queue[r] = 0; unsent[r] = 0
  };
#if MISTAKE != 40
  alarm(r)
#endif
}

/* PeerBells::ring_alarm() */
inline alarm(r) {
  d_step {
    q = 0;
    do
    :: q < RANKS ->
#if MISTAKE != 41
      wake(q);
#endif
#if MISTAKE != 43
      bell[q] = 1;
#endif
      q++
    :: else -> break
    od;
    q = 0
  }
}

/* Cycle::run(). `moved` tells whether something did. Up to three steps: what is published; what
 * is read and done; the bells. A cycle that finds nothing is one step: what it found missing at several
 * times was missing at the first of them (only a push comes later, and it is looked for after the
 * unlock). */
#if MISTAKE == 81
#define TO_RING(r) (!failed[r])
#define RING(r) ring_all(r)
#else
#define TO_RING(r) (moved && !failed[r])
#define RING(r) ring(r)
#endif
#if MISTAKE == 85
#define TO_FAIL(r) record
#else
#define TO_FAIL(r) (record && !failed[r])
#endif
#define TO_PUBLISH(r) (queue[r] || unsent[r] || TO_FAIL(r))
inline run_cycle(r) {
  do
  :: atomic {
      step == 0 && TO_PUBLISH(r) ->
      moved = 0; step = 1;
      LOAD_SLEEPERS_EARLY(r)
#if FAILURES
      if
      :: TO_FAIL(r) -> fail(r); moved = 1
      :: else
      fi;
#endif
      publish(r)
    };
    FINISH_FRAME(r)
#if CELLS < 15
    ;
    if
    :: REFUSED(r) -> ask_for_room(r)
    :: !REFUSED(r)
    fi
#endif
  :: atomic {
      step == 1 || (step == 0 && !TO_PUBLISH(r)) ->
      if
      :: step == 0 ->
        moved = 0
#if MISTAKE == 1
        ; load_sleepers_early(r)
#endif
      :: else
      fi;
      if
      :: failed[r]
      :: else ->
        read_log(r);
#if FAILURES
        if
        :: lost -> lost = 0; fail(r); moved = 1
        :: else -> advance(r)
        fi
#else
        advance(r)
#endif
      fi;
      if
      :: TO_RING(r) || finished_any[r] -> step = 2
      :: else -> step = 0; break
      fi
    }
  :: atomic {
      step == 2 ->
#if MISTAKE != 2
      if
      :: TO_RING(r) -> RING(r)
      :: else
      fi;
#endif
#if MISTAKE != 3
      if
      :: finished_any[r] -> wake(r)
      :: else
      fi;
#endif
#if MISTAKE != 82
      finished_any[r] = 0;
#endif
      step = 0;
      break
    }
  od
}

/* --- the seat ----------------------------------------------------------------------------------- */

inline lock(r) { atomic { seat[r] == 0 -> seat[r] = 1 } }

/* The background thread yields to who drives for itself. */
inline take_seat(r) {
  if
  :: atomic { seat[r] == 0 -> seat[r] = 1 }
  :: atomic { seat[r] != 0 -> wanted[r]++ };
    atomic { seat[r] == 0 -> seat[r] = 1; wanted[r]-- }
  fi
}

/* The unlock, and the look at the queue behind it (SubmissionQueue::empty()). With the fence in between
 * they may be one step: who pushes in between finds the seat free, as if it came later. Without it, the
 * look may come first. */
#if MISTAKE == 7
#define UNLOCK_AND_LOOK(r) atomic { more = queue[r] != 0 }; seat[r] = 0
#else
#define UNLOCK_AND_LOOK(r) atomic { seat[r] = 0; more = queue[r] != 0 }
#endif

/* Seat::publish(), after every unlock: tells what was submitted while the seat was taken. */
inline leave_loop(r) {
  do
  :: atomic { !more -> break }
  :: atomic { more && seat[r] == 0 -> seat[r] = 1; LOAD_SLEEPERS_EARLY(r) publish(r) };
    FINISH_FRAME(r);
#if CELLS < 15
    if
    :: REFUSED(r) -> ask_for_room(r)
    :: !REFUSED(r)
    fi;
#endif
#if MISTAKE != 4
    atomic {
      if
      :: moved && !failed[r] -> ring(r)
      :: else
      fi;
      moved = 0
    };
#endif
#if MISTAKE == 5
    atomic { seat[r] = 0; moved = 0; more = 0; break }
#else
    moved = 0;
    UNLOCK_AND_LOOK(r)
#endif
  :: atomic { more && seat[r] != 0 -> more = 0; break } /* who has it comes by here */
  od
}
#define LEAVE_SEAT(r) UNLOCK_AND_LOOK(r); leave_loop(r)

/* --- what a user's thread calls ----------------------------------------------------------------- */

/* Engine::submit() */
inline submit(r, ops) {
#if MISTAKE == 6 /* without a fence between the push and try_lock */
  if
  :: seat[r] != 0 -> push(r, ops)
  :: seat[r] == 0 -> push(r, ops); leave_loop(r)
  fi;
  more = 0;
#else
  push(r, ops);
  leave_loop(r);
#endif
#if OVERLAP && MISTAKE != 50
  bell[r] = 1 /* wake_own_background() */
#endif
}

/* usable() and SubmissionQueue::push(). Refused, there is no handle to wait for. */
inline push(r, ops) {
  atomic {
    if
    :: closed[r] -> done[r] = done[r] | ops
    :: else -> queue[r] = queue[r] | ops; more = 1
    fi
  }
}

/* Doorbell::announce(): the ticket and the announcement are one step. A ring in between finds no
 * sleeper, or wakes for nothing. */
#define ANNOUNCE(r) announced[r] = announced[r] | me; rung[r] = rung[r] & ~me
#if MISTAKE == 80
#define RUNG(r) true
#else
#define RUNG(r) (rung[r] & me)
#endif
#if SLOW_WRITERS
/* With a frame that is still written, who sleeps looks again and again, here once there is something. */
#if MISTAKE == 24
#define GLIMPSE(r) skip
#else
#define GLIMPSE(r) glimpse = UNREAD(r)
#endif
#define WOKEN(r) (RUNG(r) || (glimpse && CAN_MOVE(r)))
#define WITHDRAW(r) announced[r] = announced[r] & ~me; rung[r] = rung[r] & ~me; looking = 0; glimpse = 0
#else
#define GLIMPSE(r) skip
#define WOKEN(r) RUNG(r)
#define WITHDRAW(r) announced[r] = announced[r] & ~me; rung[r] = rung[r] & ~me; looking = 0
#endif

/* Engine::wait(), Seat::sleep(). It spins before it sleeps; that is left out: a spin that finds something is a cycle
 * that comes later. */
inline wait(r, ops) {
  if
  :: (done[r] & ops) == ops
  :: atomic { (done[r] & ops) != ops -> drivers[r]++ };
    take_seat(r);
    do
    :: !looking && (done[r] & ops) == ops -> break
    :: looking || (done[r] & ops) != ops ->
#if MISTAKE == 10 /* no second look */
      if
      :: looking -> moved = 0
      :: else -> run_cycle(r)
      fi;
#else
      run_cycle(r);
#endif
      if
      :: !looking && moved
#if MISTAKE == 11 /* the announcement after the look, as its order allows without seq_cst */
      :: atomic { !looking && !moved -> looking = 1 }
#elif MISTAKE == 13 /* the look at the peers' `drivers` before the announcement */
      :: atomic { !looking && !moved -> idle = IDLE_PEER(r) };
        atomic { ANNOUNCE(r); looking = 1 }
#else
      :: atomic { !looking && !moved -> ANNOUNCE(r); looking = 1 }
#endif
      :: looking ->
#if MISTAKE == 11
        ANNOUNCE(r);
#elif MISTAKE == 12 /* the ticket after the look */
        rung[r] = rung[r] & ~me;
#endif
#if MISTAKE == 14 /* the queue is not looked at */
        atomic { find_blockers(r, blockers); GLIMPSE(r); seat[r] = 0 };
#else
        atomic { find_blockers(r, blockers); GLIMPSE(r); seat[r] = 0; more = queue[r] != 0 };
#endif
        if
        :: atomic { more -> more = 0; moved = 0; blockers = 0; WITHDRAW(r) }
        :: atomic { !more && moved -> moved = 0; blockers = 0; WITHDRAW(r) }
        :: !more && !moved && blockers != 0 ->
#if MISTAKE == 15
          blockers = 0;
#elif MISTAKE == 13
          atomic { blockers = blockers & idle; idle = 0 };
          ask_to_drive(blockers);
#else
          ask_to_drive(blockers);
#endif
          atomic { WOKEN(r) -> WITHDRAW(r) } /* Doorbell::sleep() */
        :: atomic { !more && !moved && blockers == 0 && WOKEN(r) -> WITHDRAW(r) } /* the same */
        fi;
        take_seat(r)
      fi
    od;
    stop_driving(r);
    leave_loop(r)
  fi
}

/* Cycle::blocked_on() */
inline find_blockers(r, ranks) {
  d_step {
    q = 0; ranks = 0;
    do
    :: q < RANKS ->
      if
      :: q != r && BLOCKED_ON(r, q) -> ranks = ranks | (1 << q)
      :: else
      fi;
      q++
    :: else -> break
    od;
    q = 0
  }
}

/* Seat::leave() of a driver. A peer that announced its sleep and saw a driver counted on this
 * thread: either it sees that there is none and calls, or this look sees it sleep. */
inline stop_driving(r) {
  moved = 0;
#if MISTAKE == 16 /* the look before `drivers` is lowered */
  last_look(r);
  drivers[r]--;
#elif MISTAKE == 17
  drivers[r]--;
#else
  drivers[r]--;
  last_look(r);
#endif
#if OVERLAP && MISTAKE != 51
  if
  :: atomic { (table[r] & ~done[r]) -> listens[r] = 1 };
#if MISTAKE != 52
    run_cycle(r);
    atomic {
      if
      :: moved -> moved = 0; bell[r] = 1
      :: else
      fi
    }
#endif
  :: !(table[r] & ~done[r])
  fi;
#endif
  UNLOCK_AND_LOOK(r)
}

#if MISTAKE == 18
#define WORK_LEFT(r) (UNFINISHED(r))
#elif MISTAKE == 19
#define WORK_LEFT(r) (READABLE(r))
#else
#define WORK_LEFT(r) (READABLE(r) || UNFINISHED(r))
#endif
#define COUNTS_ON_US(q) (announced[q] || listens[q])
inline last_look(r) {
  d_step {
    if
#if MISTAKE != 20
    :: unsent[r] -> bell[r] = 1 /* the background thread may have yielded its turn to this one */
#endif
    :: WORK_LEFT(r) && !unsent[r] ->
      q = 0;
      do
      :: q < RANKS ->
        if
        :: q != r && COUNTS_ON_US(q) -> bell[r] = 1
        :: else
        fi;
        q++
      :: else -> break
      od;
      q = 0
    :: else
    fi
  }
}

/* Seat::poll(), again and again. A poll that would change nothing is left out. */
#if MISTAKE == 25
#define POLL_CALLS(r, q) false
#else
#define POLL_CALLS(r, q) (q != r && BLOCKED_ON(r, q) && drivers[q] == 0 && !bell[q])
#endif
#if RANKS == 2
#define POLL_ACTS(r) (CAN_MOVE(r) || POLL_CALLS(r, 1 - r))
#else
#define POLL_ACTS(r) (CAN_MOVE(r) || POLL_CALLS(r, 0) || POLL_CALLS(r, 1) || POLL_CALLS(r, 2))
#endif
inline poll(r, ops) {
  do
  :: (done[r] & ops) == ops -> break
  :: atomic { (done[r] & ops) != ops && seat[r] == 0 && POLL_ACTS(r) -> seat[r] = 1 };
    run_cycle(r);
    atomic {
      if
      :: moved -> moved = 0
      :: else -> find_blockers(r, blockers)
      fi
    };
#if MISTAKE != 25
    ask_to_drive(blockers);
#endif
#if MISTAKE == 26
    seat[r] = 0
#else
    LEAVE_SEAT(r)
#endif
  od
}

/* Engine::pending(), map_arena(): takes the seat, looks something up. The background thread may have
 * given its turn up for it. */
inline visit(r) {
  take_seat(r);
#if MISTAKE != 27
  bell[r] = 1;
#endif
  LEAVE_SEAT(r)
}

/* Engine::abort() */
inline abort(r) {
  lock(r);
  fail(r);
  LEAVE_SEAT(r)
}

/* Engine::shutdown(). Where it looks again and again, the model waits for what a look would find. */
inline shutdown(r) {
  atomic { drivers[r]++; stopping[r] = 1 };
  /* What all agreed to is finished. */
  do
  :: take_seat(r);
    run_cycle(r);
    atomic { find_blockers(r, blockers); seat[r] = 0 };
    if
    :: atomic { failed[r] || !UNFINISHED(r) -> blockers = 0; moved = 0; break }
    :: atomic { !failed[r] && UNFINISHED(r) && moved -> blockers = 0; moved = 0 }
    :: !failed[r] && UNFINISHED(r) && !moved ->
#if MISTAKE != 60
      ask_to_drive(blockers);
#endif
      atomic { (CAN_MOVE(r) || failed[r] || !UNFINISHED(r)) -> blockers = 0 }
    fi
  od;
  take_seat(r);
#if MISTAKE == 61 /* the queue is closed after what is in it was ended */
  atomic { done[r] = done[r] | table[r] | queue[r]; queue[r] = 0; unsent[r] = 0 };
  closed[r] = 1;
#else
  closed[r] = 1; /* SubmissionQueue::close() */
  atomic { done[r] = done[r] | table[r] | queue[r]; queue[r] = 0; unsent[r] = 0 }; /* finish_all() */
#endif
#if MISTAKE != 62
  wake(r);
#endif
  seat[r] = 0;
  /* The farewell. The log may be full of frames that a computing peer has not read. */
  do
  :: take_seat(r);
    atomic {
      LOAD_SLEEPERS_EARLY(r)
      if
      :: failed[r] -> break
      :: else
      fi;
      if
      :: !said && ROOM -> log[tail] = FRAME(r, LEAVE); tail++; said = 1
      :: else
      fi
    };
#if MISTAKE == 63 /* what came before the goodbye is not read */
    if
    :: said -> ring_all(r); break
    :: else
    fi;
#endif
    atomic {
      read_log(r);
      if
      :: lost -> lost = 0; fail(r)
      :: else
      fi;
      moved = 0; finished_any[r] = 0
    };
#if MISTAKE != 64
    ring_all(r);
#endif
    if
    :: atomic { failed[r] || (said && !READABLE(r)) -> break }
    :: else ->
      atomic { find_laggards(r, blockers); seat[r] = 0 };
#if MISTAKE != 65
      ask_to_drive(blockers);
#endif
      atomic { (ROOM || READABLE(r) || (record && !failed[r])) -> blockers = 0 };
#if FAILURES
      atomic {
        if
        :: record && !failed[r] -> seat[r] == 0 -> seat[r] = 1; fail(r); seat[r] = 0
        :: else
        fi
      }
#endif
    fi
  od;
  atomic { /* ShmLog::stop_reading() */
    LOAD_SLEEPERS_EARLY(r)
    said = 0; cursor[r] = RETIRED; forget_what_all_have_read(); q = 0; seat[r] = 0
  };
#if MISTAKE != 66 && MISTAKE != 64
  ring_all(r);
#endif
#if MISTAKE != 67
  bell[r] = 1; /* wake_own_background() */
#endif
  atomic { ended[r] -> drivers[r]-- } /* background_.join() */
}

inline find_laggards(r, ranks) {
  d_step {
    q = 0; ranks = 0;
    do
    :: q < RANKS ->
      if
      :: q != r && cursor[q] < cursor[r] -> ranks = ranks | (1 << q)
      :: else
      fi;
      q++
    :: else -> break
    od;
    q = 0
  }
}

/* --- the threads -------------------------------------------------------------------------------- */

#if MISTAKE == 1
#define LOCALS byte q, step, news; bit moved, more, lost; byte early[RANKS]
#elif SLOW_WRITERS
#define LOCALS byte q, step, news; bit moved, more, lost, glimpse
#elif CELLS < 15
#define LOCALS byte q, step, news; bit moved, more, lost, late
#else
#define LOCALS byte q, step, news; bit moved, more, lost
#endif

#define NEXT(kind) atomic { KIND(at) == kind -> ops = ARGUMENT(at); at++ }
proctype user(byte r; byte me; byte at) {
  LOCALS;
  byte blockers, ops;
#if MISTAKE == 13
  byte idle;
#endif
  bit looking, said;
  do
  :: program[at] == END -> break
  :: NEXT(SUBMIT) -> submit(r, ops)
  :: NEXT(WAIT) -> wait(r, ops)
  :: atomic { KIND(at) == UNTIL && (done[r] & ARGUMENT(at)) == ARGUMENT(at) -> at++ }
  :: atomic { KIND(at) == ELSEWHERE && (done[1 - r] & ARGUMENT(at)) == ARGUMENT(at) -> at++ }
#if POLLS
  :: NEXT(POLL) -> poll(r, ops)
#endif
#if VISITS
  :: NEXT(VISIT) -> visit(r)
#endif
#if FAILURES && ABORTS
  :: NEXT(ABORT) -> abort(r)
#endif
#if SHUTDOWNS
  :: NEXT(SHUTDOWN) -> shutdown(r)
#endif
  od
}

/* BackgroundThread::loop() */
proctype background(byte r) {
  LOCALS;
  /* epoll_wait(), and the read of the eventfd, which comes before the work: nobody needs this rank. */
#if MISTAKE == 30
#define BELL(r) bell[r]
#else
#define BELL(r) atomic { bell[r] -> bell[r] = 0 }
#endif
#if SHUTDOWNS
  do
  :: atomic { stopping[r] -> break }
  :: !stopping[r] ->
end_idle:
    BELL(r);
#else
end_idle:
  do
  :: BELL(r) ->
#endif
    lock(r);
    do
#if MISTAKE == 86
    :: atomic { wanted[r] -> bell[r] = 1; break }
#else
    :: atomic { wanted[r] -> break }
#endif
    :: atomic {
        !wanted[r] ->
#if OVERLAP
        listens[r] = 0
#else
        skip
#endif
      };
      run_cycle(r);
      if
      :: moved
#if OVERLAP
      :: atomic { !moved -> listens[r] = 1 };
#if MISTAKE == 53
        break
#else
        run_cycle(r);
        if
        :: moved
        :: !moved -> break
        fi
#endif
#else
      :: atomic { !moved -> break }
#endif
      fi
    od;
    moved = 0;
#if MISTAKE == 30
    bell[r] = 0;
#elif MISTAKE == 83
    atomic {
      if
      :: UNFINISHED(r) -> bell[r] = 1
      :: else
      fi
    };
#endif
#if MISTAKE == 31
    seat[r] = 0
#else
    LEAVE_SEAT(r)
#endif
  od;
  ended[r] = 1
}

#if FAR
/* Another host: its bytes wake who waits in epoll for a socket, the background thread. */
active proctype network() { atomic { arrived = 1; bell[0] = 1 } }
#endif

init {
  atomic {
    set_program();
    byte rank = 0;
    do
    :: rank < RANKS -> run background(rank); rank++
    :: else -> break
    od;
    run_users()
  }
}
