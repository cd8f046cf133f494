// Numbers of 16 bits: in memory only. They are computed with as floats.
//
//           sign  exponent  fraction
//   float     1       8        23
//   bf16      1       8         7       the upper half of a float
//   fp16      1       5        10       below 2^-14 with fewer digits, above 65504 infinite
//
//   *_bits    the nearest number of the type, of two that are as near the even one; a NaN stays one
//   *_value   the float that is the same number: always exact
//
// Of single numbers gcc makes vectors, so every decision is a select (see math.h). `load` is for
// the templates that use vectors themselves.

#pragma once

using u16 = unsigned short;

struct bf16 {
  u16 bits;
};
struct fp16 {
  u16 bits;
};

INLINE float bf16_value(u32 bits) { return __builtin_bit_cast(float, bits << 16); }

INLINE u32 bf16_bits(float x) {
  const u32 bits = __builtin_bit_cast(u32, x);
  const u32 nearest = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return x != x ? 0x7fc0u : nearest;
}

// No choices but by masks: two of them after one another became branches in epilogues, and a loop
// with branches no vector code (W1 at batch 64: 57 ms instead of 18).
INLINE float fp16_value(u32 bits) {
  const u32 size = bits & 0x7fff, sign = (bits & 0x8000) << 16;
  const u32 endless = 0u - ((size + 0x400) >> 15), small = 0u - ((size - 0x400) >> 31);
  const u32 normal = (size << 13) + (112u << 23) + (endless & (112u << 23));
  // Of small numbers the exponent stands for 2^-14, but they do not begin with a 1: take it off.
  const float taken = __builtin_bit_cast(float, (size << 13) + (113u << 23)) - 0x1p-14f;
  const u32 result = (normal & ~small) | (__builtin_bit_cast(u32, taken) & small);
  return __builtin_bit_cast(float, result | sign);
}

INLINE u32 fp16_bits(float x) {
  const u32 bits = __builtin_bit_cast(u32, x), sign = (bits >> 16) & 0x8000;
  const u32 size = bits & 0x7fffffff, most = 0x47800000u, least = 0x38800000u;  // 2^16, 2^-14
  const u32 bounded = size < most ? size : most;
  const u32 exponent = (bounded > least ? bounded : least) & 0x7f800000u;
  // A number 2^13 times as large has the last digit that x shall have: the sum is rounded there.
  const float large = __builtin_bit_cast(float, exponent + (13u << 23));
  const float sum = __builtin_bit_cast(float, bounded) + large;
  const u32 digits = __builtin_bit_cast(u32, sum) & 0xfff;
  const u32 result = digits + ((exponent - least) >> 13);  // what is carried goes to the exponent
  return result | sign | (x != x ? 0x200u : 0u);
}

INLINE float widened(bf16 value) { return bf16_value(value.bits); }
INLINE float widened(fp16 value) { return fp16_value(value.bits); }

typedef u16 half_lanes __attribute__((vector_size(2 * LANES)));
typedef u16 loose_half_lanes __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef u32 wide_lanes __attribute__((vector_size(4 * LANES)));

INLINE vec widened_lanes(bf16, half_lanes bits) {
  return (vec)(__builtin_convertvector(bits, wide_lanes) << 16);
}

INLINE vec widened_lanes(fp16, half_lanes bits) {
#if defined(__AVX512F__)
  typedef short lanes __attribute__((vector_size(32)));
  return __builtin_ia32_vcvtph2ps512_mask((lanes)bits, vec{}, (u16)-1, 4);
#elif defined(__F16C__)
  typedef short lanes __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps256((lanes)bits);
#else
  vec value{};
  for (int i = 0; i < LANES; i++) value[i] = fp16_value(bits[i]);
  return value;
#endif
}

template <class Half> INLINE vec load_half(const Half* from) {
  return widened_lanes(Half{}, *(const loose_half_lanes*)from);
}
INLINE vec load(const bf16* from) { return load_half(from); }
INLINE vec load(const fp16* from) { return load_half(from); }

// The first `count` numbers, zeros after them; nothing beyond them is touched.
template <class Half> INLINE vec load_first_half(const Half* from, int count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  typedef short lanes __attribute__((vector_size(32)));
  const u16 mask = (u16)((1u << count) - 1);
  const lanes bits = __builtin_ia32_loaddquhi256_mask((const short*)from, lanes{}, mask);
  return widened_lanes(Half{}, (half_lanes)bits);
#else
  half_lanes bits{};
  for (int i = 0; i < count; i++) bits[i] = from[i].bits;
  return widened_lanes(Half{}, bits);
#endif
}
INLINE vec load_first(const bf16* from, int count) { return load_first_half(from, count); }
INLINE vec load_first(const fp16* from, int count) { return load_first_half(from, count); }
