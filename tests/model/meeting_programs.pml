/* What goes wrong in meeting.pml: -DPROGRAM=name. */
#define fine_or_one_dies 1
#define two_die 2
#define second_misfit 3
#define host_misfit 4

/* Nothing, or one rank dies, anywhere. */
#if PROGRAM == fine_or_one_dies
#define DEATHS 1
#define MISFIT RANKS
#endif

/* Up to two ranks die. */
#if PROGRAM == two_die
#define DEATHS 2
#define MISFIT RANKS
#endif

/* Rank 3 does not fit (another size, settings, protocol), and one rank may die. */
#if PROGRAM == second_misfit
#define DEATHS 1
#define MISFIT 3
#endif

/* Host 1 does not fit what the other is, and one rank may die. */
#if PROGRAM == host_misfit
#define DEATHS 1
#define MISFIT 2
#endif
