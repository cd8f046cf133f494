// Elementary functions that the compiler can vectorise: one number in, one number out.
//
//   f_*  float. Branch-free: every decision is a select, no call leaves this file, so a loop over
//        an array becomes vector code. At most 2 units in the last place from the true value
//        (tanh, sigmoid, softplus, erf: 4), denormal arguments and results included.
//   d_*  double, one number at a time, by the C library.
//   i_*  32-bit integers.
//
// How a select must be written: `a ? x : (b ? y : z)` stops gcc 12's vectoriser, two statements
// one after the other do not. Clamps are written so that NaN falls through them (every comparison
// with NaN is false) and comes out of the arithmetic as NaN.

#pragma once

INLINE float f_bits(i32 bits) { return __builtin_bit_cast(float, bits); }
INLINE i32 i_bits(float x) { return __builtin_bit_cast(i32, x); }
INLINE float f_inf() { return __builtin_inff(); }
INLINE float f_nan() { return __builtin_nanf(""); }
INLINE float f_abs(float x) { return __builtin_fabsf(x); }
INLINE float f_copysign(float x, float sign) { return __builtin_copysignf(x, sign); }

// 2^n for a whole n in [-126, 127].
INLINE float f_two_to(i32 n) { return f_bits((n + 127) << 23); }

// ---- rounding, choosing ----

INLINE float f_floor(float x) { return __builtin_floorf(x); }
INLINE float f_ceil(float x) { return __builtin_ceilf(x); }
INLINE float f_trunc(float x) { return __builtin_truncf(x); }
INLINE float f_round(float x) { return __builtin_rintf(x); }  // half to even, as torch.round

// torch.maximum and minimum: NaN wins.
INLINE float f_max(float a, float b) {
  const float larger = a > b ? a : b;  // b where b is NaN
  return a != a ? a : larger;
}
INLINE float f_min(float a, float b) {
  const float smaller = a < b ? a : b;
  return a != a ? a : smaller;
}

// torch.fmax and fmin: NaN loses.
INLINE float f_fmax(float a, float b) {
  const float larger = a > b ? a : b;
  return b != b ? a : larger;
}
INLINE float f_fmin(float a, float b) {
  const float smaller = a < b ? a : b;
  return b != b ? a : smaller;
}

INLINE float f_clamp(float x, float low, float high) { return f_min(f_max(x, low), high); }

INLINE float f_sign(float x) {  // 0 for NaN, as torch
  const float positive = x > 0 ? 1.f : 0.f;
  return x < 0 ? -1.f : positive;
}

INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
INLINE float f_rsqrt(float x) { return 1.f / __builtin_sqrtf(x); }

// ---- exponentials: x = n ln 2 + r, |r| <= ln 2 / 2 ----

// ln 2 in two parts; the first has few bits, so that n times it is exact.
constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;

INLINE float f_rest_of_exp(float x, float n) { return (x - n * LN2_HIGH) - n * LN2_LOW; }

// (e^r - 1 - r) / r^2
INLINE float f_exp_tail(float r) {
  float p = 1.98756915e-4f;
  p = p * r + 1.39819995e-3f;
  p = p * r + 8.33345191e-3f;
  p = p * r + 4.16657959e-2f;
  p = p * r + 1.66666655e-1f;
  return p * r + 5.00000012e-1f;
}

// Of x between -87 and 87.
INLINE float f_exp_between(float x) {
  const float n = f_round(x * LOG2_E), r = f_rest_of_exp(x, n);
  return (f_exp_tail(r) * r * r + r + 1.f) * f_two_to((i32)n);
}

// Of x up to 89.
INLINE float f_exp_below(float x) {
  // Beyond, the result is 0, by a factor of 0: a product that underflows takes some CPUs 150 cycles,
  // and a mask of -inf makes many.
  const float y = x < -104.f ? 0.f : x;
  const float n = f_round(y * LOG2_E), r = f_rest_of_exp(y, n);
  const float p = f_exp_tail(r) * r * r + r + 1.f;
  // 2^n in two factors: neither leaves the normal range, and only the last product is rounded.
  const i32 whole = (i32)n, half = whole >> 1;
  const float first = x < -104.f ? 0.f : f_two_to(half);
  return p * first * f_two_to(whole - half);
}

INLINE float f_exp(float x) { return f_exp_below(x > 89.f ? 89.f : x); }  // beyond: infinite

// Of x from -20.
INLINE float f_expm1_above(float x) {
  const float y = x > 89.f ? 89.f : x;
  const float n = f_round(y * LOG2_E), r = f_rest_of_exp(y, n);
  const float p = f_exp_tail(r) * r * r + r;
  const float half = f_two_to((i32)n - 1);  // 2^128 is no float, 2^127 is
  const float result = 2.f * (half * p + (half - 0.5f));
  return n == 0.f ? p : result;
}

INLINE float f_expm1(float x) { return f_expm1_above(x < -20.f ? -20.f : x); }  // beyond: -1

INLINE float f_sigmoid(float x) {
  const float e = f_exp_below(-f_abs(x));
  const float above = x < 0 ? e : 1.f;
  return above / (1.f + e);
}

INLINE float f_tanh(float x) {
  const float e = f_expm1_above(2.f * f_abs(x));
  const float share = 1.f / (e + 2.f);  // one division for both: e / (e + 2) and 1 - 2 / (e + 2)
  const float result = e < 2.f ? e * share : 1.f - 2.f * share;  // also where e is infinite
  return f_copysign(result, x);
}

// ---- logarithms: x = m 2^n, m near 1 ----

INLINE float f_log(float x) {
  const float scaled = x < 1.17549435e-38f ? x * 8388608.f : x;  // denormals become normal
  const float offset = x < 1.17549435e-38f ? -23.f : 0.f;
  const i32 bits = i_bits(scaled), up = bits - 0x3f3504f3;  // sqrt(1/2): m in [0.707, 1.414)
  const float n = (float)(up >> 23) + offset;
  const float r = f_bits((up & 0x007fffff) + 0x3f3504f3) - 1.f, square = r * r;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  p = p * r * square + n * LN2_LOW - 0.5f * square;
  float result = (r + p) + n * LN2_HIGH;
  result = x == 0.f ? -f_inf() : result;
  result = x < 0.f ? f_nan() : result;
  return x < f_inf() ? result : x * x;  // infinity and NaN (x < inf is false for both)
}

INLINE float f_log1p(float x) {
  const float u = 1.f + x;
  const float lost_small = x - (u - 1.f), lost_big = 1.f - (u - x);  // what the sum rounded away
  const float lost = x < 1.f ? lost_small : lost_big;
  const float result = f_log(u) + lost / u;
  const float edge = x == -1.f ? -f_inf() : x;
  const bool inside = (x > -1.f) & (x < f_inf());
  const float outside = x < -1.f ? f_nan() : edge;
  return inside ? result : outside;
}

INLINE float f_log2(float x) { return f_log(x) * LOG2_E; }
INLINE float f_log10(float x) { return f_log(x) * 0.434294482f; }

INLINE float f_softplus(float x) {  // log(1 + e^x)
  const float above = x > 0.f ? x : 0.f;
  const float result = above + f_log1p(f_exp(-f_abs(x)));
  return x != x ? x : result;
}

// ---- error function: a polynomial near 0, 1 - e^polynomial beyond ----

INLINE float f_erf(float x) {
  const float s = x * x;
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  float t = f_abs(x);
  t = t > 4.f ? 4.f : t;
  float far = -1.72853470e-5f * t + 3.83197126e-4f;
  far = far * (t * t) + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = far * t - t;
  far = f_copysign(1.f - f_exp_between(far), x);
  return t > 0.927734375f ? far : near;
}

// ---- powers: through double, where one rounding error is far below a float's ----

INLINE double d_bits(i64 bits) { return __builtin_bit_cast(double, bits); }

// Natural logarithm of a positive normal double, to about 40 bits.
INLINE double d_log_fast(double x) {
  const i64 up = __builtin_bit_cast(i64, x) - 0x3fe6a09e667f3bcdL;
  const double m = d_bits((up & 0x000fffffffffffffL) + 0x3fe6a09e667f3bcdL);
  const double n = (double)(i32)(up >> 52), s = (m - 1.0) / (m + 1.0), q = s * s;
  double p = 2.0 / 15;
  p = p * q + 2.0 / 13;
  p = p * q + 2.0 / 11;
  p = p * q + 2.0 / 9;
  p = p * q + 2.0 / 7;
  p = p * q + 2.0 / 5;
  p = p * q + 2.0 / 3;
  p = p * q + 2.0;
  return p * s + n * 0.6931471805599453;
}

// e^x to about 40 bits; beyond what a float can hold it stays there (0 or infinity as a float).
INLINE double d_exp_fast(double x) {
  double y = x < -150.0 ? -150.0 : x;
  y = y > 150.0 ? 150.0 : y;
  const double n = __builtin_rint(y * 1.4426950408889634), r = y - n * 0.6931471805599453;
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * d_bits((i64)((i32)n + 1023) << 52);
}

INLINE float f_pow(float x, float y) {
  const float a = f_abs(x);
  const bool finite = (a > 0.f) & (a < f_inf());
  const double base = finite ? (double)a : 1.0;
  float result = (float)d_exp_fast((double)y * d_log_fast(base));
  // Powers of 0 and of infinity are 0, infinity, or (y = 0) 1.
  const float of_zero = y < 0.f ? f_inf() : 0.f, of_inf = y < 0.f ? 0.f : f_inf();
  result = a == 0.f ? of_zero : result;
  result = a == f_inf() ? of_inf : result;
  // Negative bases: whole powers only, odd ones keep the sign.
  const bool whole = f_trunc(y) == y, odd = whole & (f_trunc(0.5f * y) != 0.5f * y);
  const bool negative = i_bits(x) < 0;
  const float signed_result = odd ? -result : result;
  result = negative ? signed_result : result;
  result = (x < 0.f) & finite & !whole ? f_nan() : result;
  // 1^y and (-1)^(+-infinity) are 1; NaN beats everything but 1^y and x^0.
  result = (a == 1.f) & (f_abs(y) == f_inf()) ? 1.f : result;
  result = x != x ? x : result;
  result = y != y ? y : result;
  result = x == 1.f ? 1.f : result;
  return y == 0.f ? 1.f : result;
}

// x^N for a small whole N, by multiplications: at most about N units of error.
template <int N> INLINE float f_pow_whole(float x) {
  if constexpr (N < 0) return 1.f / f_pow_whole<-N>(x);
  else if constexpr (N == 0) return 1.f;
  else if constexpr (N == 1) return x;
  else if constexpr (N % 2) return f_pow_whole<N - 1>(x) * x;
  else return f_pow_whole<N / 2>(x * x);
}

// ---- sine and cosine: x = q pi/2 + r ----

// sin(x + quarter * pi/2). Good to |x| = 1e13; beyond, where floats are millions of turns apart,
// some number in [-1, 1].
INLINE float f_sine_quarter(float x, double quarter) {
  const double q = __builtin_rint((double)x * 0.6366197723675814);
  double r = __builtin_fma(q, -1.5707963267948966, (double)x);
  r = __builtin_fma(q, -6.123233995736766e-17, r);
  r = r > 0.8 ? 0.8 : r;
  r = r < -0.8 ? -0.8 : r;
  const double turned = q + quarter;
  const i32 k = (i32)(turned - 4.0 * __builtin_floor(turned * 0.25));  // quadrant, 0..3
  const float f = (float)r, s = f * f;
  float sine = 2.718311493989822e-6f;
  sine = sine * s - 1.98393348360966e-4f;
  sine = sine * s + 8.33329385889463e-3f;
  sine = sine * s - 1.66666666416265e-1f;
  sine = sine * s * f + f;
  float cosine = 2.44331571e-5f;
  cosine = cosine * s - 1.38873163e-3f;
  cosine = cosine * s + 4.16666457e-2f;
  cosine = cosine * (s * s) + (1.f - 0.5f * s);
  const float value = (k & 1) ? cosine : sine;
  const float result = (k & 2) ? -value : value;
  return f_abs(x) < f_inf() ? result : f_nan();
}

INLINE float f_sin(float x) { return f_sine_quarter(x, 0.0); }
INLINE float f_cos(float x) { return f_sine_quarter(x, 1.0); }

// ---- remainders ----

// C's fmod, exact. The quotient may have 277 bits: it is taken off 48 at a time, from the top.
INLINE float f_fmod(float x, float y) {
  const double divisor = f_abs(y);
  double rest = f_abs(x);
  constexpr double steps[6] = {0x1p240, 0x1p192, 0x1p144, 0x1p96, 0x1p48, 1.0};
  UNROLLED for (int i = 0; i < 6; i++) {
    const double d = divisor * steps[i], quotient = __builtin_trunc(rest / d);
    double left = __builtin_fma(-quotient, d, rest);
    left = left < 0.0 ? left + d : left;  // the quotient was rounded up
    rest = left >= d ? left - d : left;
  }
  const float result = f_copysign((float)rest, x);
  const bool whole = (f_abs(y) == f_inf()) & (f_abs(x) < f_inf());
  return whole ? x : result;
}

// torch.remainder: the sign of the divisor.
INLINE float f_remainder(float x, float y) {
  const float r = f_fmod(x, y);
  const bool other_side = (r != 0.f) & ((r < 0.f) != (y < 0.f));
  return other_side ? r + y : r;
}

// ---- integers ----

// 64 random bits of an element: Philox-2x32, see passes/philox.py. How the 64 bits of a product are
// had is what decides its speed, since gcc widens numbers of 32 bits by shuffling them: 0.7 ns an
// element with AVX-512, where they stay in lanes of 64 bits (their upper halves are not looked at);
// 1.7 ns with AVX2, which multiplies no such lanes, by four products of 16 bits.
template <int ROUNDS = 7> INLINE i64 i_philox(i32 index, i64 seed) {
  constexpr u32 M = 0xd256d193u, W = 0x9e3779b9u;
  const u32 key = (u32)seed;
#if defined(__AVX2__) && !defined(__AVX512DQ__)
  u32 a = (u32)index, b = (u32)((u64)seed >> 32);
  UNROLLED for (int i = 0; i < ROUNDS; i++) {
    const u32 bottom = a & 0xffff, top = a >> 16, first = bottom * (M & 0xffff);
    const u32 second = top * (M & 0xffff) + (first >> 16);
    const u32 third = bottom * (M >> 16) + (second & 0xffff);
    a = (top * (M >> 16) + (second >> 16) + (third >> 16)) ^ (key + i * W) ^ b;
    b = third << 16 | (first & 0xffff);
  }
  return (i64)((u64)b << 32 | a);
#else
  u64 a = (u32)index, b = (u64)seed >> 32;
  UNROLLED for (int i = 0; i < ROUNDS; i++) {
    const u64 product = (a & 0xffffffffu) * M;
    a = product >> 32 ^ (key + i * W) ^ b;
    b = product;
  }
  return (i64)(b << 32 | (a & 0xffffffffu));
#endif
}

// ---- double ----

INLINE double d_exp(double x) { return __builtin_exp(x); }
INLINE double d_expm1(double x) { return __builtin_expm1(x); }
INLINE double d_log(double x) { return __builtin_log(x); }
INLINE double d_log1p(double x) { return __builtin_log1p(x); }
INLINE double d_log2(double x) { return __builtin_log2(x); }
INLINE double d_log10(double x) { return __builtin_log10(x); }
INLINE double d_tanh(double x) { return __builtin_tanh(x); }
INLINE double d_erf(double x) { return __builtin_erf(x); }
INLINE double d_sqrt(double x) { return __builtin_sqrt(x); }
INLINE double d_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
INLINE double d_pow(double x, double y) { return __builtin_pow(x, y); }
INLINE double d_sin(double x) { return __builtin_sin(x); }
INLINE double d_cos(double x) { return __builtin_cos(x); }
INLINE double d_abs(double x) { return __builtin_fabs(x); }
INLINE double d_floor(double x) { return __builtin_floor(x); }
INLINE double d_ceil(double x) { return __builtin_ceil(x); }
INLINE double d_trunc(double x) { return __builtin_trunc(x); }
INLINE double d_round(double x) { return __builtin_rint(x); }
INLINE double d_fmod(double x, double y) { return __builtin_fmod(x, y); }
INLINE double d_sigmoid(double x) {
  const double e = __builtin_exp(-__builtin_fabs(x));
  return (x < 0 ? e : 1.0) / (1.0 + e);
}
INLINE double d_softplus(double x) {
  return (x > 0 ? x : 0.0) + __builtin_log1p(__builtin_exp(-__builtin_fabs(x)));
}
INLINE double d_remainder(double x, double y) {
  const double r = __builtin_fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
INLINE double d_max(double a, double b) { return a != a ? a : a > b ? a : b; }
INLINE double d_min(double a, double b) { return a != a ? a : a < b ? a : b; }
INLINE double d_fmax(double a, double b) { return b != b ? a : a > b ? a : b; }
INLINE double d_fmin(double a, double b) { return b != b ? a : a < b ? a : b; }
INLINE double d_sign(double x) { return x < 0 ? -1.0 : x > 0 ? 1.0 : 0.0; }
