// A program that watches itself: compiled with PANTILE_CHECKED, for tests and measurements.
//
//   COUNT_KERNEL   proves that every kernel ran: compilers have been seen to drop calls
//   POISON_ARENA   fills the memory with NaN before each run: reading what was not written shows
//   RUN            adds up the time of each kernel

#ifdef PANTILE_CHECKED
#define COUNT_KERNEL(context) if (t == 0) context->ran++
#define POISON_ARENA(context) memset(context->arena, 0xff, ARENA)
extern "C" int clock_gettime(int clock, i64* time);
// Nanoseconds that this thread ran for: others may want the core, too.
INLINE i64 ticks_now() {
  i64 time[2];
  clock_gettime(3, time);
  return time[0] * 1000000000 + time[1];
}
#ifdef PANTILE_MAIN
static i64 kernel_ticks[KERNELS + 1];
extern "C" i64* pantile_ticks(void) { return kernel_ticks; }
#endif
#define RUN(number, call)                             \
  {                                                   \
    const i64 begin = ticks_now();                    \
    call;                                             \
    if (t == 0) kernel_ticks[number] += ticks_now() - begin; \
  }
#else
#define COUNT_KERNEL(context)
#define POISON_ARENA(context)
#define RUN(number, call) call
#endif
