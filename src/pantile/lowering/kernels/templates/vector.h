// Numbers side by side: the widest registers this CPU has, as the compiler's own vector types.
//
// No headers are included anywhere in these templates: a program of one file compiles in a second.

#pragma once

using i64 = long;
using i32 = int;
using u8 = unsigned char;
using u32 = unsigned;
using u64 = unsigned long;

extern "C" void* memset(void*, int, u64);
extern "C" void* memcpy(void*, const void*, u64);

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8, REGISTERS = 16;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
// Seen by the other files. No clones: gcc would undo that kernels share a function.
#define APART_SHARED __attribute__((noinline, noclone, visibility("hidden")))
#define UNOPTIMISED __attribute__((optimize("O0")))
#define UNROLLED _Pragma("GCC unroll 32")
#define ROLLED _Pragma("GCC unroll 1")
#define LANEWISE _Pragma("GCC ivdep")
#define INLINE_CALL __attribute__((always_inline))  // after the parameters of a lambda

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int lane_mask __attribute__((vector_size(4 * LANES)));

INLINE vec load(const float* from) { return *(const loose_vec*)from; }
INLINE void store(float* to, vec value) { *(loose_vec*)to = value; }
INLINE vec spread(float value) { return vec{} + value; }

// Does this CPU multiply pairs of bfloat16 and add both products to a float? See pairs.h.
#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_PAIRS = true;
#else
constexpr bool MULTIPLIES_PAIRS = false;
#endif

// Written as the instruction itself: each compiler has another name and other types for it. Other
// CPUs multiply one half of the words after the other, which only tests want.
INLINE vec add_pairs(vec sum, vec a, vec b) {
#if defined(__AVX512BF16__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  const lane_mask first = (lane_mask)a, second = (lane_mask)b, upper = lane_mask{} - (1 << 16);
  return sum + (vec)(first << 16) * (vec)(second << 16) + (vec)(first & upper) * (vec)(second & upper);
#endif
}

// A word in all lanes. As a number, not as a float: it must not be computed with.
INLINE vec spread_pair(const float* word) { return (vec)(lane_mask{} + *(const i32*)word); }

// What is computed with, for what lies in memory; halves.h has those of 16 bits.
INLINE float widened(float value) { return value; }

// The same address, but the compiler cannot tell. It would keep what neighbouring pixels have read in
// registers from one step of a loop to the next, and spill the sums.
template <class T>
INLINE T* afresh(T* from) {
  asm("" : "+r"(from));
  return from;
}

// The part of `count` things that thread t of T does: [share(count, t, T), share(count, t + 1, T)).
INLINE i64 share(i64 count, int t, int T) { return count * t / T; }

// The same in steps: where the part of thread t begins, and that of the one before ends.
INLINE i64 part(i64 count, int step, int t, int T) {
  return t == T ? count : share(count / step, t, T) * step;
}
