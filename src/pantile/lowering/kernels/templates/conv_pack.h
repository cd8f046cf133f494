// Weights [oc][ic][kh][kw] packed in the orders in which convolutions read them (conv.h).
//
// Sizes are no constants for the loops here, so that one function packs the weights of all layers.

#pragma once

struct ConvPack {
  int OC, IC, TAPS, PANELS, CHUNK, CHUNKS;  // chunks of the channels that are summed
  i64 floats;
};
template <class C>
constexpr ConvPack conv_pack_forward = {
    C::OC, C::IC, C::KH * C::KW, C::forward_panels, C::forward_chunk, C::forward_chunks,
    C::packed_forward};
template <class C>
constexpr ConvPack conv_pack_input = {
    C::OC, C::IC, C::KH * C::KW, C::input_panels, C::input_chunk, C::input_chunks, C::packed_input};

// The same if `room` floats are enough; else it does not compile.
ConvPack conv_pack_has_no_room();
consteval ConvPack conv_pack_within(i64 room, const ConvPack& pack) {
  return pack.floats <= room ? pack : conv_pack_has_no_room();
}

// LANES outputs (rows of IC * TAPS) to the forward order: columns become vectors, NR apart in their
// chunk.
template <class Number>
APART_WHOLE void pack_forward_lanes(const Number* weight, float* panel, int outputs, int IC,
                                    int TAPS, int CHUNK, int NR) {
  i64 length = (i64)IC * TAPS, column = 0;
  int tap = 0, channel = 0;  // of the chunk that starts at `panel`
  auto next = [&]() INLINE_CALL {
    float* to = panel + ((i64)tap * CHUNK + channel) * NR;
    if (++tap == TAPS) tap = 0, channel++;
    if (channel == CHUNK) channel = 0, panel += (i64)TAPS * CHUNK * NR;
    return to;
  };
  if (outputs == LANES) {
    ROLLED for (; column + LANES <= length; column += LANES) {
      vec rows[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) rows[i] = load(weight + i * length + column);
      transpose(rows);
      alignas(64) float columns[LANES * LANES];
      UNROLLED for (int i = 0; i < LANES; i++) store(columns + i * LANES, rows[i]);
      ROLLED for (int i = 0; i < LANES; i++) store(next(), load(columns + i * LANES));
    }
  }
  ROLLED for (; column < length; column++) {
    float* to = next();
    ROLLED for (int i = 0; i < LANES; i++)
      to[i] = i < outputs ? widened(weight[i * length + column]) : 0.0f;
  }
}

// The forward order, for panels of NV vectors.
template <int NV, class Number>
INLINE void pack_forward(const ConvPack& pack, const Number* weight, float* packed, int t, int T) {
  constexpr int NR = NV * LANES;
  const i64 length = (i64)pack.IC * pack.TAPS;
  const i64 panel = (i64)pack.CHUNKS * pack.CHUNK * pack.TAPS * NR;
  const int end = share(pack.PANELS * NV, t + 1, T);
  ROLLED for (int vector = share(pack.PANELS * NV, t, T); vector < end; vector++) {
    const int first = vector * LANES;
    pack_forward_lanes(weight + first * length, packed + panel * (first / NR) + first % NR,
                       conv_max(0, conv_min(pack.OC - first, LANES)), pack.IC, pack.TAPS, pack.CHUNK,
                       NR);
  }
}

// Columns of LANES outputs (rows of the weight, `length` apart) to the plain order: each becomes a
// vector, NR after the one before.
template <class Number>
APART_WHOLE void pack_columns(const Number* weight, float* to, int outputs, i64 length, int columns,
                              int NR) {
  if (outputs == LANES && columns >= LANES) {
    ROLLED for (int column = 0; column < columns; column += LANES) {
      // The last square begins earlier: it stores some columns again.
      const int from = conv_min(column, columns - LANES);
      vec rows[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) rows[i] = load(weight + i * length + from);
      transpose(rows);
      UNROLLED for (int i = 0; i < LANES; i++) store(to + (i64)(from + i) * NR, rows[i]);
    }
    return;
  }
  ROLLED for (int column = 0; column < columns; column++, to += NR)
    ROLLED for (int i = 0; i < LANES; i++)
      to[i] = i < outputs ? widened(weight[i * length + column]) : 0.0f;
}

// The channels [first, end) of a panel, to `packed`.
template <int NR, class Number>
INLINE void pack_plain(const ConvPack& pack, const Number* weight, float* packed, int panel, int first,
                       int end) {
  ROLLED for (int oc = panel * NR; oc < (panel + 1) * NR; oc += LANES)
    pack_columns(weight + ((i64)oc * pack.IC + first) * pack.TAPS, packed + oc % NR,
                 conv_max(0, conv_min(pack.OC - oc, LANES)), (i64)pack.IC * pack.TAPS,
                 (end - first) * pack.TAPS, NR);
}

// One chunk of the input order: NR inputs of `outputs` outputs. It is written in order, the reads
// of each tap are strided, but lie in the nearest cache after the first.
template <int TAPS, int NR, class Number>
APART_WHOLE void pack_input_chunk(const Number* weight, float* to, int outputs, int inputs, int IC,
                                  int CHUNK) {
  ROLLED for (int tap = 0; tap < TAPS; tap++, to += CHUNK * NR)
    ROLLED for (int oc = 0; oc < outputs; oc++) {
      const Number* from = weight + (i64)oc * IC * TAPS + tap;
      __builtin_prefetch(from + (TAPS + tap) * LANES);  // of the next panel, a bit with every tap
      if (inputs == NR)
        UNROLLED for (int i = 0; i < NR; i++) to[oc * NR + i] = widened(from[i * TAPS]);
      else
        ROLLED for (int i = 0; i < NR; i++) to[oc * NR + i] = i < inputs ? widened(from[i * TAPS]) : 0.0f;
    }
}

// Some of the outputs for a panel of inputs.
template <int TAPS, int NR, class Number>
INLINE void pack_input_part(const ConvPack& pack, const Number* weight, float* to, int panel, int oc,
                            int outputs) {
  const int ic = panel * NR;
  pack_input_chunk<TAPS, NR>(weight + ((i64)oc * pack.IC + ic) * TAPS, to, outputs,
                             conv_min(NR, pack.IC - ic), pack.IC, pack.CHUNK);
}

// The input order, chunk by chunk for all panels, so that the rows of the weight are read in order.
template <int TAPS, int NV, class Number>
INLINE void pack_input(const ConvPack& pack, const Number* weight, float* packed, int t, int T) {
  constexpr int NR = NV * LANES;
  const i64 end = share(pack.PANELS * pack.CHUNKS, t + 1, T);
  ROLLED for (i64 at = share(pack.PANELS * pack.CHUNKS, t, T); at < end; at++) {
    const int chunk = at / pack.PANELS, panel = at % pack.PANELS, oc = chunk * pack.CHUNK;
    float* to = packed + ((i64)panel * pack.CHUNKS + chunk) * TAPS * pack.CHUNK * NR;
    pack_input_part<TAPS, NR>(pack, weight, to, panel, oc, conv_min(pack.CHUNK, pack.OC - oc));
  }
}
