/* What the ranks of connection_thread.pml do: -DPROGRAM=name. */
#define both 1
#define callee_ends 2
#define caller_ends 3

/* Both want both links, and end when they have them. */
#if PROGRAM == both
#define ENDS 0
#endif

/* Rank 0, which is called, may end at any time. */
#if PROGRAM == callee_ends
#define ENDS 1
#define MAY_END 0
#endif

/* Rank 1, which calls, may end at any time. */
#if PROGRAM == caller_ends
#define ENDS 1
#define MAY_END 1
#endif
