// Attention over pages. Query vectors of one kv head (its heads x up to MOST_ROWS rows) read each key and value once.
//
// A page keeps the keys of one head in blocks of KEY_BLOCK tokens, [block][D][KEY_BLOCK], when its tokens are whole blocks:
// one register holds an element of many keys and no sum runs across lanes. Else, and for values, rows lie one by one.
//
// Keys are taken in splits of SPLIT. Inside a split: scores (each a chain over the head's width), their maximum, powers,
// sum, and values accumulated key by key; splits are then merged in order. Scores carry a factor of log2(e), so that powers
// are of 2. A row's result depends on nothing but its own keys,
// and is the same whether splits run one after another here or in parallel with a merge afterwards.
#include <math.h>

#include "simd.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

constexpr int KEYS = 2 * LANES;                // keys widened to f32 in scratch together
constexpr int PANEL = PANEL_VECTORS * LANES;  // elements of values widened together

// The op's numbers and this worker's scratch.
struct Task {
  const LlmrunOp* op;
  int64_t per_head, kv_heads, width, padded, page_tokens, most_pages, partial, key_bytes, value_bytes;
  bool blocked;
  const int32_t *positions, *sequences, *pages, *firsts;  // firsts: null where rows see all from position 0 on
  float *query, *keys, *weights, *result, *state;  // scratch: [Q][padded], [padded][KEYS], [Q][SPLIT], [Q][partial] x 2
  float* panel;                                    // [SPLIT][PANEL]: values widened for more queries than one tile has
  float *key_scales, *value_scales;                // [SPLIT]; null when the elements are what they are
  const uint8_t **key_rows, **value_rows;          // [SPLIT]
  const uint8_t** next_keys;                       // [SPLIT / KEY_BLOCK]: where the keys of the next split begin
};

constexpr int element_bytes(int type) { return type == LLMRUN_F32 ? 4 : type == LLMRUN_I8 ? 1 : 2; }

Task make_task(const Job& job) {
  const LlmrunOp& op = *job.op;
  Task task = {};
  task.op = &op;
  task.kv_heads = op.n[2];
  task.per_head = op.n[1] / op.n[2];
  task.width = op.n[3];
  task.padded = (op.n[3] + 15) / 16 * 16;
  task.page_tokens = op.n[4];
  task.blocked = keys_in_blocks(op.n[4]);
  task.most_pages = op.n[7];
  task.partial = partial_floats(op.n[3]);
  task.key_bytes = task.width * cache_bytes(op.n[8]);
  task.value_bytes = value_row_bytes(op.n[9], task.width);
  task.positions = static_cast<const int32_t*>(op.p[3]);
  task.sequences = static_cast<const int32_t*>(op.p[4]);
  task.pages = static_cast<const int32_t*>(op.p[5]);
  task.firsts = static_cast<const int32_t*>(op.p[9]);
  const int64_t queries = attention_rows(task.per_head) * task.per_head;
  float* next = reinterpret_cast<float*>(job.scratch);
  task.query = next, next += queries * task.padded;
  task.keys = next, next += task.padded * KEYS;
  task.weights = next, next += queries * SPLIT;
  task.result = next, next += queries * task.partial;
  task.state = next, next += queries * task.partial;
  task.panel = next, next += SPLIT * MOST_PANEL;
  task.key_scales = op.p[7] ? next : nullptr, next += SPLIT;
  task.value_scales = op.p[8] ? next : nullptr, next += SPLIT;
  task.key_rows = reinterpret_cast<const uint8_t**>(next);
  task.value_rows = task.key_rows + SPLIT;
  task.next_keys = task.value_rows + SPLIT;
  return task;
}

OP int64_t queries_of(const Task& task, const AttentionGroup& group) { return group.rows * task.per_head; }

// Queries of one kv head times scale and log2(e), [row][head of it].
void load_queries(const Task& task, const AttentionGroup& group, int64_t kv_head) {
  const float* q = static_cast<const float*>(task.op->p[0]);
  const int64_t heads = task.op->n[1];
  const float scale = task.op->f[0] * 1.44269504f;
  float* out = task.query;
  for (int64_t r = 0; r < group.rows; ++r)
    for (int64_t h = 0; h < task.per_head; ++h, out += task.padded) {
      const float* from = q + ((group.row + r) * heads + kv_head * task.per_head + h) * task.width;
      for (int64_t i = 0; i < task.width; ++i) out[i] = from[i] * scale;
    }
}

// Where a token of the group's sequence lies: rows before it in the keys, and in the values.
OP int64_t place_of(const Task& task, const AttentionGroup& group, int64_t kv_head, int64_t token) {
  const int64_t page = task.pages[group.sequence * task.most_pages + token / task.page_tokens];
  return (page * task.kv_heads + kv_head) * task.page_tokens + token % task.page_tokens;
}

// Addresses of keys and values [first, first + count) of the group's sequence, and their scales. The address of the first
// key of a block is that of the block; blocks beyond the last stand for any memory that may be read.
void locate(const Task& task, const AttentionGroup& group, int64_t kv_head, int64_t first, int64_t count) {
  const uint8_t* keys = static_cast<const uint8_t*>(task.op->p[1]);
  const uint8_t* values = static_cast<const uint8_t*>(task.op->p[2]);
  const float *key_scales = static_cast<const float*>(task.op->p[7]), *value_scales = static_cast<const float*>(task.op->p[8]);
  for (int64_t j = 0; j < count;) {
    int64_t at = place_of(task, group, kv_head, first + j);
    for (int64_t t = (first + j) % task.page_tokens; t < task.page_tokens && j < count; ++t, ++j, ++at) {
      task.key_rows[j] = keys + at * task.key_bytes;
      task.value_rows[j] = values + at * task.value_bytes;
      if (key_scales) task.key_scales[j] = key_scales[at];
      if (value_scales) task.value_scales[j] = value_scales[at];
    }
  }
  for (int64_t j = count; j < SPLIT; ++j) {
    task.key_rows[j] = task.key_rows[0];
    task.value_rows[j] = task.value_rows[0];
    if (key_scales) task.key_scales[j] = 0.0f;
    if (value_scales) task.value_scales[j] = 0.0f;
  }
  for (int64_t block = 0; block < SPLIT / KEY_BLOCK; ++block) {
    const int64_t token = first + SPLIT + block * KEY_BLOCK;
    task.next_keys[block] =
        token < group.keys ? keys + place_of(task, group, kv_head, token) * task.key_bytes : task.key_rows[0];
  }
}

// LANES elements from `i` on of a row in 4-bit blocks; LANES divides `i`, so they lie in one half of one block.
OP F load_nibbles(const uint8_t* row, int64_t i) {
  const uint8_t* block = row + i / BLOCK * VALUE_BLOCK_BYTES;
  const int64_t at = i % BLOCK;
  uint16_t head[2];
  __builtin_memcpy(head, block, 4);
  const F code = at < BLOCK / 2 ? load_low4(block + 4 + at) : load_high4(block + 4 + at - BLOCK / 2);
  return fma(code, set1_half(head[0]), set1_half(head[1]));
}

template <int TYPE>
OP F load_element(const uint8_t* row, int64_t i) {
  if constexpr (TYPE == LLMRUN_Q4_1) return load_nibbles(row, i);
  if constexpr (TYPE == LLMRUN_F32) return load(reinterpret_cast<const float*>(row) + i);
  if constexpr (TYPE == LLMRUN_F16) return load_half(reinterpret_cast<const uint16_t*>(row) + i);
  if constexpr (TYPE == LLMRUN_I8) return load_i8(row + i);
  return load_bfloat(reinterpret_cast<const uint16_t*>(row) + i);
}

template <int TYPE>
OP F load_element_n(const uint8_t* row, int64_t i, int n) {
  if constexpr (TYPE == LLMRUN_Q4_1) return keep_below(load_nibbles(row, i), n);  // a block is stored whole
  if constexpr (TYPE == LLMRUN_F32) return load_n(reinterpret_cast<const float*>(row) + i, n);
  if constexpr (TYPE == LLMRUN_F16) return load_half_n(reinterpret_cast<const uint16_t*>(row) + i, n);
  if constexpr (TYPE == LLMRUN_I8) {
    uint8_t part[LANES] = {0};
    for (int j = 0; j < n && j < LANES; ++j) part[j] = row[i + j];
    return load_i8(part);
  }
  return load_bfloat_n(reinterpret_cast<const uint16_t*>(row) + i, n);
}

// Where LANES keys from `key` on begin inside their block.
template <int TYPE>
OP const uint8_t* block_of(const Task& task, int64_t key) {
  return task.key_rows[key / KEY_BLOCK * KEY_BLOCK] + key % KEY_BLOCK * element_bytes(TYPE);
}

// keys[d][0..KEYS) = element d of keys [first, ...); keys at and beyond `count` are zero.
template <int TYPE>
void transpose_keys(const Task& task, int64_t first, int64_t count) {
  for (int part = 0; part < 2; ++part) {
    const int64_t from = first + part * LANES;
    for (int64_t d = 0; d < task.width; d += LANES) {
      const int n = static_cast<int>(task.width - d);
      F block[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i) {
        if (from + i >= count)
          block[i] = zero();
        else if (n >= LANES)
          block[i] = load_element<TYPE>(task.key_rows[from + i], d);
        else
          block[i] = load_element_n<TYPE>(task.key_rows[from + i], d, n);
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i) store(task.keys + (d + i) * KEYS + part * LANES, block[i]);
    }
  }
}

// keys[d][0..KEYS) from blocks, for more queries than one tile has.
template <int TYPE>
void widen_keys(const Task& task, int64_t first) {
  for (int part = 0; part < 2; ++part) {
    const uint8_t* from = block_of<TYPE>(task, first + part * LANES);
    for (int64_t d = 0; d < task.width; ++d)
      store(task.keys + d * KEYS + part * LANES, load_element<TYPE>(from, d * KEY_BLOCK));
  }
}

// Scores of Q queries and V registers of keys; register v starts at keys[v], its element d `stride` elements further on.
template <int TYPE, int Q, int V>
void score_tile(const Task& task, int64_t query, int64_t key, const uint8_t* const* keys, int64_t stride,
                const uint8_t* const* ahead) {
  const float* q = task.query + query * task.padded;
  F acc[Q][V];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[i][v] = zero();
  for (int64_t d = 0; d < task.width; ++d) {
    F element[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) element[v] = load_element<TYPE>(keys[v], d * stride);
    if (ahead)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) __builtin_prefetch(ahead[v] + d * LANES * element_bytes(TYPE), 0, 2);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const F value = set1(q[i * task.padded + d]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[i][v] = fma(value, element[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const int64_t at = key + v * LANES;
      const F score = task.key_scales ? mul(acc[i][v], load(task.key_scales + at)) : acc[i][v];
      store(task.weights + (query + i) * SPLIT + at, score);
    }
}

// Queries of one kv head against the KEYS keys in scratch.
void score_scratch(const Task& task, int64_t queries, int64_t key) {
  const uint8_t* keys[2] = {reinterpret_cast<const uint8_t*>(task.keys),
                            reinterpret_cast<const uint8_t*>(task.keys + LANES)};
  int64_t query = 0;
  for (; query + QUERY_TILE <= queries; query += QUERY_TILE)
    score_tile<LLMRUN_F32, QUERY_TILE, 2>(task, query, key, keys, KEYS, nullptr);
  for (; query + 3 <= queries; query += 3) score_tile<LLMRUN_F32, 3, 2>(task, query, key, keys, KEYS, nullptr);
  for (; query < queries; ++query) score_tile<LLMRUN_F32, 1, 2>(task, query, key, keys, KEYS, nullptr);
}

// Q queries straight against the blocks. Few queries take more keys at once: every sum is one chain of latencies.
template <int TYPE, int Q>
void score_blocks(const Task& task, int64_t query, int64_t count) {
  constexpr int V = LANES == 16 ? (Q == 1 ? 8 : Q <= 4 ? 4 : 2) : (Q <= 2 ? 4 : 2);
  for (int64_t key = 0; key < count; key += V * LANES) {
    const uint8_t *keys[V], *values[V];
    for (int v = 0; v < V; ++v) {
      keys[v] = block_of<TYPE>(task, key + v * LANES);
      values[v] = task.value_rows[key + v * LANES];
    }
    score_tile<TYPE, Q, V>(task, query, key, keys, KEY_BLOCK, query == 0 ? values : nullptr);
  }
}

template <int TYPE>
void scores(const Task& task, int64_t queries, int64_t count) {
  if (task.blocked && queries <= QUERY_TILE) {
    int64_t query = 0;
    for (; query + 4 <= queries; query += 4) score_blocks<TYPE, 4>(task, query, count);
    for (; query + 3 <= queries; query += 3) score_blocks<TYPE, 3>(task, query, count);
    for (; query + 2 <= queries; query += 2) score_blocks<TYPE, 2>(task, query, count);
    for (; query < queries; ++query) score_blocks<TYPE, 1>(task, query, count);
    return;
  }
  for (int64_t key = 0; key < count; key += KEYS) {
    if (task.blocked)
      widen_keys<TYPE>(task, key);
    else
      transpose_keys<TYPE>(task, key, count);
    score_scratch(task, queries, key);
  }
}

// Powers of LANES scores of which the first `hidden` do not count.
OP F powers(F score, float top, int hidden) {
  const F value = exp2_down(sub(score, set1(top)));
  return hidden > 0 ? sub(value, keep_below(value, hidden)) : value;
}

// Turns scores [hidden, visible) into 2^(score - maximum), the rest up to `count` (rounded up to LANES) into 0. The sum is
// of the powers; with `scales` what is stored are their products with the scales of the values.
void soften(float* score, const float* scales, int hidden, int visible, int64_t count, float* end) {
  if (hidden >= visible) hidden = visible = 0;
  const int whole = visible / LANES * LANES, start = hidden / LANES * LANES;
  for (int j = 0; j < start; j += LANES) store(score + j, zero());
  for (int j = start; j < hidden; ++j) score[j] = -INFINITY;
  F most = set1(-INFINITY);
  for (int j = start; j < whole; j += LANES) most = maxf(most, load(score + j));
  if (whole < visible) most = maxf(most, fill_from(load(score + whole), visible - whole, -INFINITY));
  const float top = hmax(most);
  F sum = zero();
  for (int j = start; j < whole; j += LANES) {
    const F value = powers(load(score + j), top, hidden - j);
    store(score + j, scales ? mul(value, load(scales + j)) : value);
    sum = add(sum, value);
  }
  if (whole < visible) {
    const F value = keep_below(powers(load(score + whole), top, hidden - whole), visible - whole);
    const F product = scales ? mul(value, load(scales + whole)) : value;
    store(score + whole, keep_below(product, visible - whole));
    sum = add(sum, value);
  }
  for (int64_t j = (visible + LANES - 1) / LANES * LANES; j < count; j += LANES) store(score + j, zero());
  end[0] = top;
  end[1] = hsum(sum);
}

// The share of key j in the next split's blocks.
OP void prefetch_next_key(const Task& task, int64_t j) {
  const uint8_t* from = task.next_keys[j / KEY_BLOCK] + j % KEY_BLOCK * task.key_bytes;
  for (int64_t at = 0; at < task.key_bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// V registers of a value's elements from d on, which V * LANES divides.
template <int TYPE, int V>
OP void load_elements(const uint8_t* row, int64_t d, F value[V]) {
  if constexpr (TYPE == LLMRUN_Q4_1) {  // blocks one by one: their heads are read once
    const uint8_t* block = row + d / BLOCK * VALUE_BLOCK_BYTES;
    const int64_t at = V * LANES >= BLOCK ? 0 : d % BLOCK;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) value[v] = load_nibbles(block, at + v * LANES);
  } else {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) value[v] = load_element<TYPE>(row, d + v * LANES);
  }
}

// result[Q][d .. d + V * LANES) = weights x values, key by key; TAIL: one vector of which n elements exist.
template <int TYPE, int Q, int V, bool TAIL>
void value_tile(const Task& task, int64_t query, int64_t count, int64_t d, int n) {
  const bool ahead = query == 0 && d == 0;
  const float* weights = task.weights + query * SPLIT;
  F acc[Q][V];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[i][v] = zero();
  for (int64_t j = 0; j < count; ++j) {
    if (ahead) prefetch_next_key(task, j);
    F value[V];
    if constexpr (TAIL)
      value[0] = load_element_n<TYPE>(task.value_rows[j], d, n);
    else
      load_elements<TYPE, V>(task.value_rows[j], d, value);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const F weight = set1(weights[i * SPLIT + j]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[i][v] = fma(weight, value[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(task.result + (query + i) * task.partial + d + v * LANES, acc[i][v]);
}

template <int TYPE, int Q>
void value_rows(const Task& task, int64_t query, int64_t count) {
  int64_t d = 0;
  for (; d + 4 * LANES <= task.width; d += 4 * LANES) value_tile<TYPE, Q, 4, false>(task, query, count, d, 0);
  for (; d + LANES <= task.width; d += LANES) value_tile<TYPE, Q, 1, false>(task, query, count, d, 0);
  if (d < task.width) value_tile<TYPE, Q, 1, true>(task, query, count, d, static_cast<int>(task.width - d));
}

// panel[j][0 .. PANEL) = elements d .. of value j; beyond the width zero.
template <int TYPE>
void widen_values(const Task& task, int64_t count, int64_t d) {
  const int64_t left = task.width - d;
  for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v) {
      const int64_t n = left - v * LANES;
      F value = zero();
      if (n >= LANES)
        value = load_element<TYPE>(task.value_rows[j], d + v * LANES);
      else if (n > 0)
        value = load_element_n<TYPE>(task.value_rows[j], d + v * LANES, static_cast<int>(n));
      store(task.panel + j * PANEL + v * LANES, value);
    }
  }
}

// result[Q][d .. d + PANEL) = weights x panel, key by key. Vectors beyond the padded width are not stored.
template <int Q>
void panel_tile(const Task& task, int64_t query, int64_t count, int64_t d) {
  const float* weights = task.weights + query * SPLIT;
  F acc[Q][PANEL_VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v) acc[i][v] = zero();
#pragma GCC unroll 2
  for (int64_t j = 0; j < count; ++j) {
    F value[PANEL_VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v) value[v] = load(task.panel + j * PANEL + v * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const F weight = set1(weights[i * SPLIT + j]);
#pragma GCC unroll 4
      for (int v = 0; v < PANEL_VECTORS; ++v) acc[i][v] = fma(weight, value[v], acc[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < PANEL_VECTORS; ++v)
      if (d + v * LANES < task.padded) store(task.result + (query + i) * task.partial + d + v * LANES, acc[i][v]);
}

// Many queries: values are widened once for all of them, a panel that stays in the first-level cache at a time.
template <int TYPE>
void weigh_panels(const Task& task, int64_t queries, int64_t count) {
  for (int64_t d = 0; d < task.width; d += PANEL) {
    widen_values<TYPE>(task, count, d);
    int64_t query = 0;
    for (; query + PANEL_TILE <= queries; query += PANEL_TILE) panel_tile<PANEL_TILE>(task, query, count, d);
    for (; query + 3 <= queries; query += 3) panel_tile<3>(task, query, count, d);
    for (; query < queries; ++query) panel_tile<1>(task, query, count, d);
  }
}

template <int TYPE>
void weigh(const Task& task, int64_t queries, int64_t count) {
  if (queries >= 2 * PANEL_TILE) return weigh_panels<TYPE>(task, queries, count);
  int64_t query = 0;
  for (; query + VALUE_TILE <= queries; query += VALUE_TILE) value_rows<TYPE, VALUE_TILE>(task, query, count);
  if constexpr (VALUE_TILE > 4)
    for (; query + 4 <= queries; query += 4) value_rows<TYPE, 4>(task, query, count);
  if constexpr (VALUE_TILE > 3)
    for (; query + 3 <= queries; query += 3) value_rows<TYPE, 3>(task, query, count);
  for (; query + 2 <= queries; query += 2) value_rows<TYPE, 2>(task, query, count);
  for (; query < queries; ++query) value_rows<TYPE, 1>(task, query, count);
}

OP int visible_keys(const Task& task, const AttentionGroup& group, int64_t query, int64_t first) {
  const int64_t left = task.positions[group.row + query / task.per_head] + 1 - first;
  return static_cast<int>(left < 0 ? 0 : left > SPLIT ? SPLIT : left);
}

// Keys of the split before the first that the query sees.
OP int hidden_keys(const Task& task, const AttentionGroup& group, int64_t query, int64_t first) {
  const int64_t left = task.firsts ? task.firsts[group.row + query / task.per_head] - first : 0;
  return static_cast<int>(left < 0 ? 0 : left > SPLIT ? SPLIT : left);
}

void score(const Task& task, int64_t queries, int64_t count) {
  switch (task.op->n[8]) {
    case LLMRUN_F32: return scores<LLMRUN_F32>(task, queries, count);
    case LLMRUN_F16: return scores<LLMRUN_F16>(task, queries, count);
    case LLMRUN_I8: return scores<LLMRUN_I8>(task, queries, count);
    default: return scores<LLMRUN_BF16>(task, queries, count);
  }
}

void take_values(const Task& task, int64_t queries, int64_t count) {
  switch (task.op->n[9]) {
    case LLMRUN_F32: return weigh<LLMRUN_F32>(task, queries, count);
    case LLMRUN_F16: return weigh<LLMRUN_F16>(task, queries, count);
    case LLMRUN_I8: return weigh<LLMRUN_I8>(task, queries, count);
    case LLMRUN_Q4_1: return weigh<LLMRUN_Q4_1>(task, queries, count);
    default: return weigh<LLMRUN_BF16>(task, queries, count);
  }
}

// The partial result of one split in task.result: [Q][width values .. maximum, sum at partial-16, -15].
void run_split(const Task& task, const AttentionGroup& group, int64_t kv_head, int64_t split) {
  const int64_t first = split * SPLIT, queries = queries_of(task, group);
  const int64_t count = group.keys - first < SPLIT ? group.keys - first : SPLIT;
  locate(task, group, kv_head, first, count);
  score(task, queries, count);
  for (int64_t i = 0; i < queries; ++i)
    soften(task.weights + i * SPLIT, task.value_scales, hidden_keys(task, group, i, first),
           visible_keys(task, group, i, first), count, task.result + i * task.partial + task.padded);
  take_values(task, queries, count);
}

// 2^x for x <= 0; of the two that a merge needs one is 2^0.
OP float power(float x) { return x == 0.0f ? 1.0f : first(exp2_down(set1(x))); }

// Folds a split's partial results into the running state; a query that sees nothing of the split keeps its state.
__attribute__((noinline)) void merge(const Task& task, const AttentionGroup& group, const float* part, int64_t split) {
  const int64_t queries = queries_of(task, group);
  for (int64_t i = 0; i < queries; ++i) {
    float* state = task.state + i * task.partial;
    const float* from = part + i * task.partial;
    const bool sees = hidden_keys(task, group, i, split * SPLIT) < visible_keys(task, group, i, split * SPLIT);
    if (split == group.first_split || (sees && state[task.padded] == -INFINITY)) {  // nothing seen so far
      __builtin_memcpy(state, from, static_cast<size_t>(task.partial) * 4);
      continue;
    }
    if (!sees) continue;
    float *most = state + task.padded, *sum = most + 1;
    const float top = *most > from[task.padded] ? *most : from[task.padded];
    const float keep = power(*most - top), take = power(from[task.padded] - top);
    *most = top;
    *sum = *sum * keep + from[task.padded + 1] * take;
    for (int64_t d = 0; d < task.padded; d += LANES)
      store(state + d, add(mul(load(state + d), set1(keep)), mul(load(from + d), set1(take))));
  }
}

void write_out(const Task& task, const AttentionGroup& group, int64_t kv_head) {
  float* out = static_cast<float*>(task.op->p[6]);
  const int64_t heads = task.op->n[1];
  for (int64_t i = 0; i < queries_of(task, group); ++i) {
    const float* state = task.state + i * task.partial;
    const float scale = 1.0f / state[task.padded + 1];
    const int64_t row = group.row + i / task.per_head, head = kv_head * task.per_head + i % task.per_head;
    float* to = out + (row * heads + head) * task.width;
    for (int64_t d = 0; d < task.width; ++d) to[d] = state[d] * scale;
  }
}

void run_direct(const Task& task, const AttentionGroup& group, int64_t kv_head) {
  load_queries(task, group, kv_head);
  for (int64_t i = 0; i < attention_splits(group); ++i) {
    run_split(task, group, kv_head, group.first_split + i);
    merge(task, group, task.result, group.first_split + i);
  }
  write_out(task, group, kv_head);
}

OP float* partial_of(const Task& task, const AttentionPlan& plan, const AttentionGroup& group, int64_t unit) {
  return plan.partials + group.first_float + unit * queries_of(task, group) * task.partial;
}

}  // namespace

void attention(const Job& job) {
  Task task = make_task(job);
  const AttentionPlan& plan = *job.plan;
  int64_t index = 0;
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    if (!plan.split) {  // the last rows see most keys: longest first
      run_direct(task, plan.groups[plan.count - 1 - unit / task.kv_heads], unit % task.kv_heads);
      continue;
    }
    while (index + 1 < plan.count && plan.groups[index + 1].first_unit <= unit) ++index;
    const AttentionGroup& group = plan.groups[index];
    const int64_t local = unit - group.first_unit, splits = attention_splits(group), kv_head = local / splits;
    task.result = partial_of(task, plan, group, local);
    load_queries(task, group, kv_head);
    run_split(task, group, kv_head, group.first_split + local % splits);
  }
}

// Split mode only.
void attention_merge(const Job& job) {
  const Task task = make_task(job);
  const AttentionPlan& plan = *job.plan;
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    const AttentionGroup& group = plan.groups[unit / task.kv_heads];
    const int64_t kv_head = unit % task.kv_heads, splits = attention_splits(group);
    for (int64_t i = 0; i < splits; ++i)
      merge(task, group, partial_of(task, plan, group, kv_head * splits + i), group.first_split + i);
    write_out(task, group, kv_head);
  }
}

}  // namespace llmrun::LLMRUN_BUILD
