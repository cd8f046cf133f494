// Operators of single numbers, for every type; gcc makes vectors of them.
//
// Chosen by overloading: float goes to math.h, double to the compiler's own functions.

#pragma once

// Whole numbers wrap around, as in torch. Not by -fwrapv: then the compiler may no
// longer think that index + 1 is the next index, and vectorises nothing (W2: 66 us instead of 26).
template <class T> struct Wraps { using type = T; };
template <> struct Wraps<i32> { using type = u32; };
template <> struct Wraps<i64> { using type = u64; };
template <> struct Wraps<short> { using type = u32; };
template <class T> INLINE T op_add(T a, T b) {
  using W = typename Wraps<T>::type;
  return (T)((W)a + (W)b);
}
template <class T> INLINE T op_sub(T a, T b) {
  using W = typename Wraps<T>::type;
  return (T)((W)a - (W)b);
}
template <class T> INLINE T op_mul(T a, T b) {
  using W = typename Wraps<T>::type;
  return (T)((W)a * (W)b);
}
template <class T> INLINE T op_neg(T a) { return op_sub((T)0, a); }
INLINE float op_neg(float a) { return -a; }
INLINE double op_neg(double a) { return -a; }

#define PANTILE_FUNCTION(name)                                 \
  INLINE float op_##name(float x) { return f_##name(x); }      \
  INLINE double op_##name(double x) { return __builtin_##name(x); }
PANTILE_FUNCTION(ceil)
PANTILE_FUNCTION(cos)
PANTILE_FUNCTION(erf)
PANTILE_FUNCTION(exp)
PANTILE_FUNCTION(expm1)
PANTILE_FUNCTION(floor)
PANTILE_FUNCTION(log)
PANTILE_FUNCTION(log1p)
PANTILE_FUNCTION(sin)
PANTILE_FUNCTION(sqrt)
PANTILE_FUNCTION(tanh)
PANTILE_FUNCTION(trunc)
#undef PANTILE_FUNCTION

INLINE float op_pow(float x, float y) { return f_pow(x, y); }
INLINE double op_pow(double x, double y) { return __builtin_pow(x, y); }
INLINE float op_fmod(float x, float y) { return f_fmod(x, y); }
INLINE double op_fmod(double x, double y) { return __builtin_fmod(x, y); }
INLINE float op_exp2(float x) {  // the whole part is exact
  const float whole = __builtin_rintf(x);
  const float clear = x - x == 0 ? whole : 0.f;
  const float bounded = clear < -160.f ? -160.f : clear > 140.f ? 140.f : clear;
  const i32 n = (i32)bounded, half = n >> 1;
  const float part = f_exp((x - bounded) * 0.693147180559945f);
  return part * f_two_to(half) * f_two_to(n - half);
}
INLINE double op_exp2(double x) { return __builtin_exp2(x); }
INLINE float op_log2(float x) { return f_log(x) * 1.442695040888963f; }
INLINE double op_log2(double x) { return __builtin_log2(x); }
INLINE float op_round(float x) { return __builtin_rintf(x); }
INLINE double op_round(double x) { return __builtin_rint(x); }

// One number at a time: rare, and no reason to write them anew.
#define PANTILE_PLAIN(name)                                       \
  INLINE float op_##name(float x) { return __builtin_##name##f(x); } \
  INLINE double op_##name(double x) { return __builtin_##name(x); }
PANTILE_PLAIN(acos)
PANTILE_PLAIN(acosh)
PANTILE_PLAIN(asin)
PANTILE_PLAIN(asinh)
PANTILE_PLAIN(atan)
PANTILE_PLAIN(atanh)
PANTILE_PLAIN(cosh)
PANTILE_PLAIN(erfc)
PANTILE_PLAIN(lgamma)
PANTILE_PLAIN(log10)
PANTILE_PLAIN(sinh)
PANTILE_PLAIN(tan)
#undef PANTILE_PLAIN
#define PANTILE_PLAIN(name)                                                          \
  INLINE float op_##name(float x, float y) { return __builtin_##name##f(x, y); }     \
  INLINE double op_##name(double x, double y) { return __builtin_##name(x, y); }
PANTILE_PLAIN(atan2)
PANTILE_PLAIN(copysign)
PANTILE_PLAIN(hypot)
#undef PANTILE_PLAIN

template <class T> INLINE T op_abs(T x) { return x < 0 ? -x : x; }
INLINE float op_abs(float x) { return __builtin_fabsf(x); }
INLINE double op_abs(double x) { return __builtin_fabs(x); }

// Remainders with the sign of the divisor, and quotients rounded down: as torch does it.
template <class T> INLINE T op_modulo(T a, T b) {
  const T rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
template <class T> INLINE T real_modulo(T a, T b) {
  const T rest = op_fmod(a, b), moved = rest + b;
  const bool other = (rest != 0) & ((rest < 0) != (b < 0));
  return other ? moved : rest;
}
INLINE float op_modulo(float a, float b) { return real_modulo(a, b); }
INLINE double op_modulo(double a, double b) { return real_modulo(a, b); }

template <class T> INLINE T op_div_floor(T a, T b) { return (a - op_modulo(a, b)) / b; }
template <class T> INLINE T real_div_floor(T a, T b) {
  const T rest = op_fmod(a, b), quotient = (a - rest) / b;
  const bool other = (rest != 0) & ((rest < 0) != (b < 0));
  const T whole = other ? quotient - 1 : quotient;
  const T floor = op_floor(whole), up = floor + 1;
  const T near = whole - floor > (T)0.5 ? up : floor;
  const T plain = a / b;
  return op_abs(b) > 0 ? near : plain;  // comparing b with 0 itself would lose the sign of a zero
}
INLINE float op_div_floor(float a, float b) { return real_div_floor(a, b); }
INLINE double op_div_floor(double a, double b) { return real_div_floor(a, b); }
template <class T> INLINE T op_div_trunc(T a, T b) { return a / b; }
INLINE float op_div_trunc(float a, float b) { return op_trunc(a / b); }
INLINE double op_div_trunc(double a, double b) { return op_trunc(a / b); }

template <class T> INLINE T op_reciprocal(T x) { return 1 / x; }
template <class T> INLINE T op_rsqrt(T x) { return 1 / op_sqrt(x); }
INLINE float op_sigmoid(float x) { return f_sigmoid(x); }
INLINE double op_sigmoid(double x) { return 1 / (1 + __builtin_exp(-x)); }
template <class T> INLINE T op_relu(T x) { return x <= 0 ? (T)0 : x; }
template <class T> INLINE T op_sign(T x) {
  T up = x > 0 ? (T)1 : (T)0;
  T result = x < 0 ? (T)-1 : up;
  return x != x ? (T)0 : result;
}
// A NaN wins. Two choices after one another: nested ones are not vectorised.
template <class T> INLINE T op_max(T a, T b) {
  T result = a > b ? a : b;
  return a != a ? a : result;
}
template <class T> INLINE T op_min(T a, T b) {
  T result = a < b ? a : b;
  return a != a ? a : result;
}
template <class T> INLINE bool op_isinf(T x) { return x - x != x - x && x == x; }
// As in torch, shifting by all bits or more leaves nothing but the sign.
template <class T> INLINE T op_left(T x, T by) {
  return (u64)by < sizeof(T) * 8 ? (T)((u64)x << (u64)by) : (T)0;
}
template <class T> INLINE T op_right(T x, T by) {
  const u64 most = sizeof(T) * 8 - 1;
  return (T)(x >> ((u64)by < most ? (int)by : (int)most));
}
template <class T> INLINE T op_not(T x) { return ~x; }
INLINE bool op_not(bool x) { return !x; }

// A computed place in a tensor; one outside is noted, and the first is taken instead. In whole numbers
// without a branch, and noted in a variable of the kernel's own: of that gcc makes vectors.
INLINE i64 within(i64 place, i64 size, i64* failed) {
  const i64 outside = (place | (i64)((u64)size - 1 - (u64)place)) >> 63;  // all bits, or none
  *failed |= outside;
  return place & ~outside;
}
// The same, and negative places are counted from the end.
INLINE i64 bounded(i64 place, i64 size, i64* failed) {
  return within(place < 0 ? place + size : place, size, failed);
}
