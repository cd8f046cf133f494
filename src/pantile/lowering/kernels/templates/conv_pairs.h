// Convolutions of bfloat16 by the instruction that multiplies pairs of them (pairs.h).
//
//   forward        a pair of inputs is a word:    Conv<N, IC / 2, ..., OC, ...>
//   to the input   a pair of outputs is a word:   Conv<N, IC, ..., OC / 2, ...>
//
// Pixels lie in words already, where channels and strides are even. So both are convolutions of
// words with half the channels, and all strides of the source halved: tiles, chunks and orders of
// the weight are those of floats. Only when the weight is packed are its words made, since the
// numbers of a pair lie apart there.

#pragma once

template <class C>
using ConvForwardPairs = ConvForward<C, false, true>;
template <class C>
using ConvInputPairs = ConvInput<C, true>;

// to[i] = the pair (first[i], second[i]).
INLINE void conv_join(const bf16* first, const bf16* second, float* to, int count) {
  LANEWISE for (int i = 0; i < count; i++)
    ((u32*)to)[i] = first[i].bits | u32(second[i].bits) << 16;
}

// A row of a weight, `channels` words of TAPS taps each: both numbers of a word in the same row.
template <int TAPS>
INLINE void conv_join_row(const bf16* row, float* to, int channels) {
  ROLLED for (int c = 0; c < channels; c++, row += 2 * TAPS, to += TAPS)
    conv_join(row, row + TAPS, to, TAPS);
}

// The forward order, from the weight [oc][2 * ic][kh][kw].
template <class C>
INLINE void pack_forward_pairs(const bf16* weight, float* packed, int t, int T) {
  constexpr int NR = C::forward_panel, TAPS = C::KH * C::KW, CHUNK = C::forward_chunk;
  constexpr int CHUNKS = C::forward_chunks, VECTORS = C::forward_panels * NR / LANES;
  alignas(64) float words[LANES * CHUNK * TAPS];
  const int end = share(VECTORS * CHUNKS, t + 1, T);
  ROLLED for (int at = share(VECTORS * CHUNKS, t, T); at < end; at++) {
    const int oc = at / CHUNKS * LANES, ic = at % CHUNKS * CHUNK;
    const int outputs = conv_max(0, conv_min(C::OC - oc, LANES)), channels = conv_min(CHUNK, C::IC - ic);
    ROLLED for (int i = 0; i < outputs; i++)
      conv_join_row<TAPS>(weight + ((i64)(oc + i) * C::IC + ic) * 2 * TAPS,
                          words + (i64)i * channels * TAPS, channels);
    float* to = packed + C::forward_floats * (oc / NR) + oc % NR + (i64)ic * TAPS * NR;
    pack_forward_lanes(words, to, outputs, channels, TAPS, CHUNK, NR);
  }
}

// The input order, from the weight [2 * oc][ic][kh][kw].
template <class C>
INLINE void pack_input_pairs(const bf16* weight, float* packed, int t, int T) {
  constexpr int NR = C::input_panel, TAPS = C::KH * C::KW, PANELS = C::input_panels;
  constexpr int CHUNK = C::input_chunk, CHUNKS = C::input_chunks;
  alignas(64) float words[CHUNK * NR * TAPS];
  const int end = share(PANELS * CHUNKS, t + 1, T);
  ROLLED for (int at = share(PANELS * CHUNKS, t, T); at < end; at++) {
    const int chunk = at / PANELS, panel = at % PANELS, ic = panel * NR, oc = chunk * CHUNK;
    const int outputs = conv_min(CHUNK, C::OC - oc), inputs = conv_min(NR, C::IC - ic);
    ROLLED for (int i = 0; i < outputs; i++) {
      const bf16* row = weight + ((i64)(oc + i) * 2 * C::IC + ic) * TAPS;
      conv_join(row, row + (i64)C::IC * TAPS, words + (i64)i * NR * TAPS, inputs * TAPS);
    }
    float* to = packed + ((i64)panel * CHUNKS + chunk) * TAPS * CHUNK * NR;
    pack_input_chunk<TAPS, NR>(words, to, outputs, inputs, NR, CHUNK);
  }
}

// As conv_forward and conv_input.
template <class C, class Ep>
INLINE void conv_forward_pairs(const bf16* x, const float* packed, int t, int T, Ep ep) {
  conv_alone<ConvForwardPairs<C>>((const float*)x, packed, t, T, ep);
}
template <class C, class Ep>
INLINE void conv_input_pairs(const bf16* dy, const float* packed, int t, int T, Ep ep) {
  conv_alone<ConvInputPairs<C>>((const float*)dy, packed, t, T, ep);
}
