// A 2-D convolution as compile-time numbers, and the two orders in which its kernels read the weight.
//
//   x [n][h][w][ic]  *  weight [oc][ic][kh][kw]  ->  y [n][oh][ow][oc]        (channels last)
//
//   forward order   [oc / NR][ic / CHUNK][kh][kw][CHUNK][NR]    panels of NR outputs
//   plain order     [oc / NR][ic][kh][kw][NR]                   the same, chunk by chunk in between
//   input order     [ic / NR][oc / CHUNK][kh][kw][CHUNK][NR]    panels of NR inputs
//
// x and y may have strides of their own: one group of a grouped convolution is a Conv of its
// channels with the strides of all channels, and pointers to its first.
//
// One chunk of one panel fits the nearest cache, with all its taps, beside the pixels it meets.
// The last panel is filled up with zeros, so the kernels always multiply whole vectors. A packed
// weight is of floats; where it comes from it may be of 16 bits.

#pragma once

#define APART_WHOLE APART __attribute__((noclone))  // and compiled once, not for each caller

constexpr int conv_min(int a, int b) { return a < b ? a : b; }
constexpr int conv_max(int a, int b) { return a > b ? a : b; }
constexpr int conv_ceil(int a, int b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }  // b > 0
constexpr int conv_modulo(int a, int b) { return (a % b + b) % b; }
constexpr int conv_gcd(int a, int b) { return b ? conv_gcd(b, a % b) : a; }

// Vectors side by side in one panel: two give each broadcast two multiplications to feed.
constexpr int conv_vectors(int channels) { return channels > LANES ? 2 : 1; }

// Pixels a tile can hold in registers: one vector stays free for the broadcast, NV for the panel.
constexpr int conv_pixels(int vectors) { return (REGISTERS - vectors - 2) / vectors; }

// Floats of weights that stay in the nearest cache: a whole panel if it goes, else a chunk of one.
constexpr int CONV_PANEL_FLOATS = 10 * 1024, CONV_CHUNK_FLOATS = 5 * 1024;

// Channels of a chunk: all of them where a whole panel fits.
constexpr int conv_chunk(int channels, int taps, int panel) {
  if ((i64)channels * taps * panel <= CONV_PANEL_FLOATS) return channels;
  int fitting = conv_max(8, CONV_CHUNK_FLOATS / (taps * panel));
  return conv_ceil(channels, conv_ceil(channels, fitting));
}

// Pixels that are done: `rows` x `columns` of them, `step` columns of the image apart, `count`
// channels of each from `first` on. Rows of the sums are `row` floats apart, pixels NR.
struct ConvPart {
  int n, h, w, step, rows, columns, first, count, row;
  const float* sums;
};

// Hands every pixel to ep(n, h, w, channel, count, channels). WHOLE: there are always NR channels.
template <int NR, bool WHOLE, class Ep>
INLINE void conv_pixels_to(const ConvPart& part, const Ep& ep) {
  ROLLED for (int r = 0; r < part.rows; r++)
    ROLLED for (int i = 0; i < part.columns; i++) {
      const float* sums = part.sums + (i64)r * part.row + (i64)i * NR;
      const int w = part.w + i * part.step;
      if (WHOLE || part.count == NR) ep(part.n, part.h + r, w, part.first, NR, sums);
      else ep(part.n, part.h + r, w, part.first, part.count, sums);
    }
}

// The same through a pointer: the loops around it are then compiled once, and not for every kernel.
using ConvTake = void (*)(const void* ep, const ConvPart& part);

template <int NR, bool WHOLE, class Ep>
APART void conv_take(const void* with, const ConvPart& given) {
  const Ep ep = *(const Ep*)with;  // copies, which nothing that is stored can change
  const ConvPart part = given;
  conv_pixels_to<NR, WHOLE>(part, ep);
}

template <class C, bool TURNED>
struct ConvWeightSizes;

template <int N_, int IC_, int H_, int W_, int OC_, int OH_, int OW_, int KH_, int KW_, int SH_,
          int SW_, int PH_, int PW_, int DH_, int DW_, int XN_ = H_ * W_ * IC_, int XH_ = W_ * IC_,
          int XW_ = IC_, int YN_ = OH_ * OW_ * OC_, int YH_ = OW_ * OC_, int YW_ = OC_>
struct Conv {
  static constexpr int N = N_, IC = IC_, H = H_, W = W_, OC = OC_, OH = OH_, OW = OW_;
  static constexpr int KH = KH_, KW = KW_, SH = SH_, SW = SW_, PH = PH_, PW = PW_;
  static constexpr int DH = DH_, DW = DW_;
  static constexpr int XN = XN_, XH = XH_, XW = XW_, YN = YN_, YH = YH_, YW = YW_;

  static constexpr int forward_panel = LANES * conv_vectors(OC);
  static constexpr int input_panel = LANES * conv_vectors(IC);
  static constexpr int forward_panels = conv_ceil(OC, forward_panel);
  static constexpr int input_panels = conv_ceil(IC, input_panel);
  static constexpr int forward_chunk = conv_chunk(IC, KH * KW, forward_panel);
  static constexpr int input_chunk = conv_chunk(OC, KH * KW, input_panel);
  static constexpr int forward_chunks = conv_ceil(IC, forward_chunk);
  static constexpr int input_chunks = conv_ceil(OC, input_chunk);
  static constexpr i64 forward_floats =  // of one panel
      (i64)forward_chunks * forward_chunk * KH * KW * forward_panel;
  static constexpr i64 packed_forward = forward_panels * forward_floats;
  static constexpr i64 packed_input =
      (i64)input_panels * input_chunks * input_chunk * KH * KW * input_panel;

  // The gradient to the weight keeps its sums, and copies of what does not fit its loops.
  static constexpr i64 weight_scratch = ConvWeightSizes<Conv, false>::SCRATCH;
  static constexpr i64 turned_scratch = ConvWeightSizes<Conv, true>::SCRATCH;
};
