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

INLINE float fp16_value(u32 bits) {
  const u32 size = bits & 0x7fff, sign = (bits & 0x8000) << 16;
  const u32 normal = (size << 13) + (112u << 23);
  const u32 endless = normal + (112u << 23);
  const float tiny = (float)(i32)size * 0x1p-24f;  // the number of its last digits
  u32 result = size >= 0x7c00 ? endless : normal;
  result = size < 0x0400 ? __builtin_bit_cast(u32, tiny) : result;
  return __builtin_bit_cast(float, result | sign);
}

INLINE u32 fp16_bits(float x) {
  const u32 bits = __builtin_bit_cast(u32, x), size = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
  const u32 normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1)) >> 13;
  // The last digit of 1/2 is 2^-24, as that of all small numbers: the sum is rounded there.
  const float sum = __builtin_bit_cast(float, size) + 0.5f;
  const u32 tiny = __builtin_bit_cast(u32, sum) - 0x3f000000u;
  u32 result = size < 0x38800000u ? tiny : normal;
  result = size >= 0x477ff000u ? 0x7c00u : result;  // 65520, half-way to what would come next
  result = size > 0x7f800000u ? 0x7e00u : result;
  return result | sign;
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
