/* What the user threads do in a run of seat.pml: -DPROGRAM=name. A thread whose program ends computes
 * for ever: its rank then has only its background thread. */
#define END 0
#define SUBMIT 1    /* a set of operations */
#define WAIT 2      /* for a set of operations */
#define POLL 3      /* until the set is done */
#define UNTIL 4     /* computes until the set is done here, and calls nothing */
#define ELSEWHERE 5 /* computes until the set is done on the other of two ranks */
#define VISIT 6
#define ABORT 7
#define SHUTDOWN 8
#define KIND(at) (program[at] >> 4)
#define ARGUMENT(at) (program[at] & 15)
#define DO(kind, what) (((kind) << 4) | (what))

hidden byte program[40]; /* never changes, so it is no part of a state */
#define SLOT(slot, a, b, c, d, e) program[(slot) * 8] = a; program[(slot) * 8 + 1] = b; \
  program[(slot) * 8 + 2] = c; program[(slot) * 8 + 3] = d; program[(slot) * 8 + 4] = e; \
  program[(slot) * 8 + 5] = END
#define THREAD(rank, thread, slot) run user(rank, 1 << (thread), (slot) * 8)

#define async 1
#define leaves 2
#define computes 3
#define threads 4
#define submitters 5
#define submitter 6
#define rounds 7
#define far 8
#define visitor 9
#define polls 10
#define poll_calls 11
#define full 12
#define full_computes 13
#define overlap 14
#define overlap_waits 15
#define three 16
#define three_wait 17
#define shuts_down 18
#define shutdown_pending 19
#define shutdown_computes 20
#define shutdown_threads 21
#define shutdown_alone 22
#define shutdown_unread 23
#define shutdown_late 24
#define shutdown_full 25
#define failure 26
#define failure_computes 27
#define failure_here 28
#define set 29
#define set_full 30
#define set_hides 31
#define set_overlap 32
#define full_twice 33

/* What is submitted at once is waited for in another order. */
#if PROGRAM == async
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 1), DO(WAIT, 2), END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 2), END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A rank waits for one operation, and computes while the other waits for the next. */
#if PROGRAM == leaves
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), DO(SUBMIT, 2), DO(WAIT, 2), END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 1), DO(ELSEWHERE, 2), END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* One rank computes all the time. */
#if PROGRAM == computes
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 3), END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(ELSEWHERE, 3), END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* Two threads of a rank wait for operations of their own; the other rank computes. */
#if PROGRAM == threads
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END);
  SLOT(2, DO(SUBMIT, 3), DO(ELSEWHERE, 3), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* Two threads of a rank submit and compute, the other rank waits. */
#if PROGRAM == submitters
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), END, END, END, END);
  SLOT(1, DO(SUBMIT, 2), END, END, END, END);
  SLOT(2, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* A thread submits what must end before what another thread waits for. */
#if PROGRAM == submitter
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 2), DO(ELSEWHERE, 2), END, END, END);
  SLOT(2, DO(SUBMIT, 2), DO(WAIT, 2), DO(SUBMIT, 1), END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* Operations of two rounds; a rank leaves in the middle of one. */
#if PROGRAM == rounds
#define TWO_ROUNDS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 3), END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 1), DO(ELSEWHERE, 2), END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* An operation that other hosts take part in. */
#if PROGRAM == far
#define FAR 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* Somebody looks something up while another thread submits. */
#if PROGRAM == visitor
#define VISITS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(ELSEWHERE, 1), END, END, END);
  SLOT(1, DO(VISIT, 0), END, END, END, END);
  SLOT(2, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* A thread polls for one operation while another submits what the other rank waits for. */
#if PROGRAM == polls
#define POLLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(POLL, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 2), END, END, END, END);
  SLOT(2, DO(SUBMIT, 3), DO(WAIT, 3), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* Who polls needs the other rank, which computes. */
#if PROGRAM == poll_calls
#define POLLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(POLL, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(ELSEWHERE, 1), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* The log has room for one frame. */
#if PROGRAM == full
#define CELLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 3), DO(WAIT, 2), END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 1), DO(ELSEWHERE, 2), END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* The log has room for one frame, and who has submitted computes. */
#if PROGRAM == full_computes
#define CELLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(ELSEWHERE, 3), END, END);
  SLOT(1, DO(SUBMIT, 3), DO(WAIT, 3), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* With overlap nobody has to wait. */
#if PROGRAM == overlap
#define OVERLAP 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(UNTIL, 1), DO(SUBMIT, 2), DO(UNTIL, 2), END);
  SLOT(1, DO(SUBMIT, 3), DO(UNTIL, 3), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* With overlap, and a wait for another operation. */
#if PROGRAM == overlap_waits
#define OVERLAP 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 1), DO(UNTIL, 2), END);
  SLOT(1, DO(SUBMIT, 3), DO(UNTIL, 3), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* Three ranks: one waits. */
#if PROGRAM == three
#define RANKS 3
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 1), END, END, END, END);
  SLOT(2, DO(SUBMIT, 1), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(2, 0, 2) }
#endif

/* Three ranks: two wait. */
#if PROGRAM == three_wait
#define RANKS 3
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(2, DO(SUBMIT, 1), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(2, 0, 2) }
#endif

/* A rank shuts down while the other waits for an operation that it never submits. */
#if PROGRAM == shuts_down
#define SHUTDOWNS 1
#define FAILURES 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), DO(SHUTDOWN, 0), END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 3), DO(SHUTDOWN, 0), END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A rank shuts down with operations that nobody has waited for. */
#if PROGRAM == shutdown_pending
#define SHUTDOWNS 1
#define FAILURES 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SHUTDOWN, 0), END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(WAIT, 1), DO(SHUTDOWN, 0), END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A rank shuts down while the other computes. */
#if PROGRAM == shutdown_computes
#define SHUTDOWNS 1
#define FAILURES 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SHUTDOWN, 0), END, END, END);
  SLOT(1, DO(SUBMIT, 1), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A rank shuts down while a thread of its own submits and waits. */
#if PROGRAM == shutdown_threads
#define SHUTDOWNS 1
#define FAILURES 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SHUTDOWN, 0), END, END, END, END);
  SLOT(2, DO(SUBMIT, 1), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1); THREAD(1, 0, 2) }
#endif

/* The same, while the other rank computes and submits nothing. */
#if PROGRAM == shutdown_alone
#define SHUTDOWNS 1
#define FAILURES 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(SHUTDOWN, 0), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(0, 1, 1) }
#endif

/* A goodbye finds the log full of what the other rank, which computes, has not read. */
#if PROGRAM == shutdown_unread
#define SHUTDOWNS 1
#define FAILURES 1
#define CELLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SHUTDOWN, 0), END, END, END)
}
inline run_users() { THREAD(0, 0, 0) }
#endif

/* What comes after the goodbye fills the log. */
#if PROGRAM == shutdown_late
#define SHUTDOWNS 1
#define FAILURES 1
#define CELLS 1
inline set_program() {
  SLOT(0, DO(SHUTDOWN, 0), END, END, END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), DO(WAIT, 3), END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A goodbye finds the log full. */
#if PROGRAM == shutdown_full
#define SHUTDOWNS 1
#define FAILURES 1
#define CELLS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(SHUTDOWN, 0), END, END, END);
  SLOT(1, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A thread ends the World while another rank waits. */
#if PROGRAM == failure
#define FAILURES 1
#define ABORTS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), END, END, END);
  SLOT(1, DO(ABORT, 0), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A thread ends the World while another rank computes. */
#if PROGRAM == failure_computes
#define FAILURES 1
#define ABORTS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(UNTIL, 1), END, END, END);
  SLOT(1, DO(ABORT, 0), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* A thread ends the World while another thread of the rank submits and waits. */
#if PROGRAM == failure_here
#define FAILURES 1
#define ABORTS 1
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), END, END, END, END);
  SLOT(1, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END);
  SLOT(2, DO(ABORT, 0), END, END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(1, 1, 2) }
#endif

/* Operation 1 is that of a process set, of ranks 0 and 1. Rank 2 waits for operation 2, of all. */
#if PROGRAM == set
#define RANKS 3
#define OUTSIDE(r) ((r) == 2 -> 1 : 0)
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), DO(SUBMIT, 2), END, END);
  SLOT(1, DO(SUBMIT, 3), END, END, END, END);
  SLOT(2, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(2, 0, 2) }
#endif

/* Operation 1 is that of a process set of rank 0 alone. The log has room for one frame, and rank 1
 * hears nothing of the set's. */
#if PROGRAM == set_full
#define CELLS 1
#define OUTSIDE(r) ((r) == 1 -> 1 : 0)
inline set_program() {
  SLOT(0, DO(SUBMIT, 1), DO(WAIT, 1), DO(SUBMIT, 2), END, END);
  SLOT(1, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif

/* Sets of ranks 0 and 1, and of 0 and 2: what rank 1 writes may hide what rank 0 has written. */
#if PROGRAM == set_hides
#define RANKS 3
#define SLOW_WRITERS 1
#define OUTSIDE(r) ((r) == 2 -> 1 : ((r) == 1 -> 2 : 0))
inline set_program() {
  SLOT(0, DO(SUBMIT, 2), END, END, END, END);
  SLOT(1, DO(SUBMIT, 1), END, END, END, END);
  SLOT(2, DO(SUBMIT, 2), DO(WAIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(2, 0, 2) }
#endif

/* The same with overlap: nobody waits. */
#if PROGRAM == set_overlap
#define RANKS 3
#define OVERLAP 1
#define SLOW_WRITERS 1
#define OUTSIDE(r) ((r) == 2 -> 1 : ((r) == 1 -> 2 : 0))
inline set_program() {
  SLOT(0, DO(SUBMIT, 2), END, END, END, END);
  SLOT(1, DO(SUBMIT, 1), END, END, END, END);
  SLOT(2, DO(SUBMIT, 2), DO(UNTIL, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1); THREAD(2, 0, 2) }
#endif

/* The log has room for two frames: what was refused may go out while another is handled. */
#if PROGRAM == full_twice
#define CELLS 2
inline set_program() {
  SLOT(0, DO(SUBMIT, 2), DO(SUBMIT, 1), DO(WAIT, 1), END, END);
  SLOT(1, DO(SUBMIT, 1), DO(SUBMIT, 2), END, END, END)
}
inline run_users() { THREAD(0, 0, 0); THREAD(1, 0, 1) }
#endif
