// Matrix products on tile registers. Included by linear.cpp, inside its namespaces, in builds that have them.
//
// A 16-row group's quants of a 32-block, unpacked, are 8 quads x 16 rows: just the rows of a weight tile. They are
// unpacked once for all rows of x. The unit adds up one block exactly; scales and sums over blocks are the code of the
// vector tiles, so the results have the same bits. Half of the unit's depth of 64 stays unused: a block's sum must be
// scaled before the next is added.
//
// Floor for 16 rows x 16 outputs x one block: 16 cycles a plane in the unit, about 16 x 4 vector operations to scale.

constexpr int64_t CHUNK_BLOCKS = 64;  // unpacked at once: 32 KB; a multiple of every head's period
constexpr int64_t BLOCK_QUADS = 512;  // bytes of an unpacked block of a group
constexpr int64_t MOST_PANELS = 32;   // 16-row panels whose sums are kept meanwhile: 32 KB

// Up to 16 rows, as quantize lays out a panel: their blocks side by side.
struct Panel {
  const XBlock* x;
  int rows;
  alignas(64) float acc[TILE * GROUP];
};

// The quants of `blocks` blocks from `w` on, which is where a head stands.
template <class Q>
void unpack_blocks(const uint8_t* w, int64_t blocks, uint8_t* out) {
  for (int64_t b = 0; b < blocks; ++b, out += BLOCK_QUADS) {
    if (Q::head_bytes > 0 && b % Q::period == 0) w += Q::head_bytes;
    const uint8_t* quants = w + Q::scales;
    I high[2], even, odd;
    load_high<Q>(quants, high);
    quads<Q, 0>(quants, high, even, odd), store_i(out, even), store_i(out + 64, odd);
    quads<Q, 1>(quants, high, even, odd), store_i(out + 128, even), store_i(out + 192, odd);
    quads<Q, 2>(quants, high, even, odd), store_i(out + 256, even), store_i(out + 320, odd);
    quads<Q, 3>(quants, high, even, odd), store_i(out + 384, even), store_i(out + 448, odd);
    w += Q::bytes;
  }
}

// Products of a block or of half of it.
template <int PLANES>
struct Sums {
  alignas(64) int32_t of[PLANES][TILE][GROUP];
};

// `q`: the quants of the first row's first plane.
template <int PLANES>
OP void multiply_block(Tiles& tiles, const int8_t* q, const uint8_t* weights, Sums<PLANES>* sums) {
  constexpr int64_t stride = PLANES * static_cast<int64_t>(sizeof(XBlock));
  tiles.template load<6>(weights, 64);
  tiles.template clear<0>();
  tiles.template load<4>(q, stride);
  tiles.template multiply<0, 4, 6>();
  if constexpr (PLANES == 2) {
    tiles.template clear<1>();
    tiles.template load<5>(q + sizeof(XBlock), stride);
    tiles.template multiply<1, 5, 6>();
    tiles.template store<1>(&sums->of[1][0][0]);
  }
  tiles.template store<0>(&sums->of[0][0][0]);
}

enum Part { WHOLE, LOW, UP };

template <Part PART>
OP int32_t minus_of(const XBlock& x) {
  return PART == WHOLE ? x.minus : PART == LOW ? x.minus_low : x.minus - x.minus_low;
}

// The sums of T rows from row m on: offsets taken back, planes joined.
template <class Q, Part PART, int T, int PLANES>
OP void gather_sums(const Sums<PLANES>& sums, const XBlock* x, int m, I* out) {
  const auto plane = [&](int i, int p) {
    return add_i(load_i(sums.of[p][m + i]), start<Q>(minus_of<PART>(x[i * PLANES + p])));
  };
#pragma GCC unroll 4
  for (int i = 0; i < T; ++i) {
    if constexpr (PLANES == 2)
      out[i] = join_planes(plane(i, 0), plane(i, 1));
    else
      out[i] = plane(i, 0);
  }
}

// Scales the block's sums of T rows from row m on and adds them up.
template <class Q, int T, int PLANES>
OP void scale_rows(const Q& scale, const Sums<PLANES>* sums, const XBlock* x, int m, float* out) {
  F acc[T];
#pragma GCC unroll 4
  for (int i = 0; i < T; ++i) acc[i] = load(out + (m + i) * GROUP);
  const XBlock* rows = x + m * PLANES;
  I low[T];
  if constexpr (Q::halves) {
    I up[T];
    gather_sums<Q, LOW, T, PLANES>(sums[0], rows, m, low);
    gather_sums<Q, UP, T, PLANES>(sums[1], rows, m, up);
    accumulate_halves<Q, T, PLANES>(scale, rows, low, up, acc);
  } else {
    gather_sums<Q, WHOLE, T, PLANES>(sums[0], rows, m, low);
    accumulate<Q, T, PLANES>(scale, rows, low, acc);
  }
#pragma GCC unroll 4
  for (int i = 0; i < T; ++i) store(out + (m + i) * GROUP, acc[i]);
}

// `blocks` blocks of a group, whose scales are at `w` and whose quants at `weights`, with a panel's blocks from `first`.
template <class Q, int PLANES>
void multiply_panel(Tiles& tiles, const uint8_t* w, const uint8_t* weights, int64_t first, int64_t blocks, Panel* panel) {
  const int rows = panel->rows;
  const XBlock* x = panel->x + first * rows * PLANES;
  Sums<PLANES> sums[Q::halves ? 2 : 1];
  Q scale;
  for (int64_t b = 0; b < blocks; ++b, x += rows * PLANES, weights += BLOCK_QUADS) {
    if constexpr (Q::head_bytes > 0) {
      if (b % Q::period == 0) {
        scale.super(w, 0);
        w += Q::head_bytes;
      }
    }
    scale.block(w, 0);
    w += Q::bytes;
    multiply_block<PLANES>(tiles, x->q, weights, sums);
    if constexpr (Q::halves) multiply_block<PLANES>(tiles, x->q + BLOCK / 2, weights + BLOCK_QUADS / 2, sums + 1);
    int m = 0;
    for (; m + 4 <= rows; m += 4) scale_rows<Q, 4, PLANES>(scale, sums, x, m, panel->acc);
    for (; m < rows; ++m) scale_rows<Q, 1, PLANES>(scale, sums, x, m, panel->acc);
  }
}

// One group for all panels; every panel but the last has 16 rows.
template <class Q, int PLANES>
void multiply_group(Tiles& tiles, const uint8_t* w, int64_t blocks, Panel* panels, int64_t count) {
  constexpr int depth = Q::halves ? BLOCK / 2 : BLOCK;
  constexpr int64_t period = Q::head_bytes > 0 ? Q::period : 1;
  alignas(64) uint8_t weights[CHUNK_BLOCKS * BLOCK_QUADS];
  int configured = 0;
  for (int64_t first = 0; first < blocks; first += CHUNK_BLOCKS) {
    const int64_t some = blocks - first < CHUNK_BLOCKS ? blocks - first : CHUNK_BLOCKS;
    unpack_blocks<Q>(w, some, weights);
    for (int64_t p = 0; p < count; ++p) {
      if (panels[p].rows != configured) tiles.configure(configured = panels[p].rows, depth);
      multiply_panel<Q, PLANES>(tiles, w, weights, first, some, panels + p);
    }
    w += some * Q::bytes + (some + period - 1) / period * Q::head_bytes;
  }
}

// Rows [row, end) in panels of 16; VECTOR_ROWS or fewer are left to the vector tiles. Returns the first row left.
template <int PLANES>
int64_t run_tiles(const Matrix& matrix, const XBlock* x, int64_t row, int64_t end, int64_t from, int64_t to) {
  const int64_t blocks = matrix.cols / BLOCK;
  if (end - row <= VECTOR_ROWS) return row;
  Tiles tiles;
  Panel panels[MOST_PANELS];
  while (end - row > VECTOR_ROWS) {
    const int64_t first_row = row;
    int64_t count = 0;
    for (; count < MOST_PANELS && end - row > VECTOR_ROWS; ++count) {
      panels[count].x = x + row * blocks * PLANES;
      panels[count].rows = static_cast<int>(end - row < TILE ? end - row : TILE);
      row += panels[count].rows;
    }
    for (int64_t g = from; g < to; ++g) {
      for (int64_t p = 0; p < count; ++p) memset(panels[p].acc, 0, sizeof panels[p].acc);
      with_type(matrix.type, [&](auto type) {
        multiply_group<Format<decltype(type)::value>, PLANES>(tiles, matrix.data + g * matrix.group_bytes, blocks, panels, count);
      });
      for (int64_t p = 0; p < count; ++p) write_tile(matrix, panels[p].acc, first_row + p * TILE, panels[p].rows, g);
    }
  }
  return row;
}
