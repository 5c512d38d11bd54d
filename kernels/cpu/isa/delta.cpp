// Kernels of recurrent layers: short causal convolution, gated delta rule, gated norm, sigmoid gates.
#include "vectors.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

OP const float* source(const Job& job, int i) { return static_cast<const float*>(job.op->p[i]); }
OP float* target(const Job& job, int i) { return static_cast<float*>(job.op->p[i]); }

// -- short convolution --------------------------------------------------------------------------------------------------

// The taps that a row has: weights and inputs [C] each, oldest first. Inputs before position 0 are zeros: left out.
struct Taps {
  const float* weights[MOST_TAPS];
  const float* inputs[MOST_TAPS];
  int count;
};

// Inputs of earlier steps lie in a ring: that of position p in row p % ring of `past`. Rows that were taken back after their
// step lie behind those that count, out of every later row's reach until they are written again.
Taps taps_of(const Job& job, const Run& run, int64_t i, const float* past) {
  const int64_t channels = job.op->n[3], count = job.op->n[4], dilation = job.op->n[5], ring = job.op->n[6];
  Taps taps;
  taps.count = 0;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t back = (count - 1 - j) * dilation, position = run.position + i - back;
    if (position < 0) continue;
    taps.weights[taps.count] = source(job, 4) + j * channels;
    taps.inputs[taps.count++] =
        back > i ? past + position % ring * channels : source(job, 3) + (run.row + i - back) * channels;
  }
  return taps;
}

template <int COUNT>
OP F convolve(const Taps& taps, int64_t c, int n) {
  F sum = zero();
  const int count = COUNT ? COUNT : taps.count;
#pragma GCC unroll 4
  for (int t = 0; t < count; ++t) sum = fma(load_some(taps.weights[t] + c, n), load_some(taps.inputs[t] + c, n), sum);
  return sum;
}

template <int COUNT>
void convolve_row(const Taps& taps, float* out, int64_t from, int64_t to, bool with_silu) {
  if (with_silu)
    lanes(from, to, [&](int64_t c, int n) { store_some(out + c, silu(convolve<COUNT>(taps, c, n)), n); });
  else
    lanes(from, to, [&](int64_t c, int n) { store_some(out + c, convolve<COUNT>(taps, c, n), n); });
}

// -- gated delta rule ---------------------------------------------------------------------------------------------------

// Rows that a v-head takes up: pointers of the first one, floats from one to the next.
struct Lines {
  const float *query, *key, *value;
  int64_t stride;
  const float *a, *b;
  int64_t gate_stride;
};

// One v-head of one sequence. Its rows are counted through: `folded` that an earlier step left pending, then the step's own.
// Those before `certain` move the state on; the others, drafts, go on in a copy that ends with the step.
struct Head {
  int64_t key_width, value_width, folded, certain, rows;
  Lines pending, fresh;
  float* out;
  int64_t out_stride;
  float decay, bias;
  float* state;
};

// What up to `most` rows of a head need: normed keys and queries, `padded` floats a row, and their scalars; `draft`: a
// strip of the state for rows that are not certain.
struct Ready {
  int64_t most, padded;
  float *keys, *queries;
  float *keep, *beta, *key_query;
  float* draft;
};

Ready ready_in(const Job& job) {
  Ready ready;
  ready.most = delta_rows(*job.op);
  ready.padded = (job.op->n[5] + 15) / 16 * 16;
  ready.keys = reinterpret_cast<float*>(job.scratch);
  ready.queries = ready.keys + ready.padded * ready.most;
  ready.keep = ready.queries + ready.padded * ready.most;
  ready.beta = ready.keep + ready.most;
  ready.key_query = ready.beta + ready.most;
  ready.draft = ready.key_query + ready.most;
  return ready;
}

float dot(const float* x, const float* y, int64_t width) {
  F sum = zero();
  lanes(0, width, [&](int64_t i, int n) { sum = fma(load_some(x + i, n), load_some(y + i, n), sum); });
  return hsum(sum);
}

float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

void make_ready(const Head& head, int64_t row, const Ready& ready, int64_t i) {
  const int64_t width = head.key_width;
  const bool pending = row < head.folded;
  const Lines& lines_of = pending ? head.pending : head.fresh;
  const int64_t line = pending ? row : row - head.folded;
  const float *query = lines_of.query + line * lines_of.stride, *key = lines_of.key + line * lines_of.stride;
  const float of_query = 1.0f / sqrtf(dot(query, query, width) + 1e-6f) / sqrtf(static_cast<float>(width));
  const float of_key = 1.0f / sqrtf(dot(key, key, width) + 1e-6f);
  float *queries = ready.queries + i * ready.padded, *keys = ready.keys + i * ready.padded;
  lanes(0, width, [&](int64_t d, int n) {
    store_some(queries + d, mul(load_some(query + d, n), set1(of_query)), n);
    store_some(keys + d, mul(load_some(key + d, n), set1(of_key)), n);
  });
  ready.key_query[i] = dot(keys, queries, width);
  ready.keep[i] = expf(head.decay * softplus(lines_of.a[line * lines_of.gate_stride] + head.bias));
  ready.beta[i] = 1.0f / (1.0f + expf(-lines_of.b[line * lines_of.gate_stride]));
}

// A strip of V registers (TAIL: one, of which n lanes exist) of a block of the state: read at `from`, written at `to`, the
// same place unless drafts begin to go their own way; floats from one row of the state to the next.
struct Strip {
  const float* from;
  int64_t from_stride;
  float* to;
  int64_t to_stride;
  int n;
};

template <int V, bool TAIL>
OP F load_lane(const Strip& strip, const float* p, int v) {
  return TAIL ? load_n(p, strip.n) : load(p + v * LANES);
}
template <int V, bool TAIL>
OP void store_lane(const Strip& strip, float* p, F x, int v) {
  if (TAIL)
    store_n(p, x, strip.n);
  else
    store(p + v * LANES, x);
}

template <int V>
struct Sums {
  F key[V], query[V];
};

// UPDATE: to = keep from + key x delta. READ: sums = next_key . state, next_query . state, of the state after that;
// even and odd rows of the state apart, each a chain of latencies.
template <int V, bool TAIL, bool UPDATE, bool READ>
OP void sweep(const Strip& strip, int64_t width, const F delta[V], float keep, const float* key, const float* next_key,
              const float* next_query, Sums<V>* sums) {
  F of_key[2][V], of_query[2][V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) of_key[0][v] = of_key[1][v] = of_query[0][v] = of_query[1][v] = zero();
  const F kept = set1(keep);
  const auto one = [&](int64_t d, int odd) __attribute__((always_inline)) {
    const float* from = strip.from + d * strip.from_stride;
    const F k = UPDATE ? set1(key[d]) : zero(), next_k = READ ? set1(next_key[d]) : zero();
    const F next_q = READ ? set1(next_query[d]) : zero();
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      F s = load_lane<V, TAIL>(strip, from, v);
      if (UPDATE) {
        s = fma(k, delta[v], mul(s, kept));
        store_lane<V, TAIL>(strip, strip.to + d * strip.to_stride, s, v);
      }
      if (READ) {
        of_key[odd][v] = fma(next_k, s, of_key[odd][v]);
        of_query[odd][v] = fma(next_q, s, of_query[odd][v]);
      }
    }
  };
  int64_t d = 0;
  for (; d + 2 <= width; d += 2) {
    one(d, 0);
    one(d + 1, 1);
  }
  if (d < width) one(d, 0);
  if (!READ) return;
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    sums->key[v] = add(of_key[0][v], of_key[1][v]);
    sums->query[v] = add(of_query[0][v], of_query[1][v]);
  }
}

// `count` rows through one strip. With u = state . k and p = state . q of the state before a row:
//   delta = beta (v - keep u), out = keep p + (k . q) delta, state = keep state + k x delta,
// so that the state is read and written once a row: the update of a row also sums for the next one. Pending rows take the
// same way as all others, so a state has the same bits whenever its rows were taken up.
template <int V, bool TAIL>
void run_strip(const Head& head, const Ready& ready, Strip strip, int64_t row, int64_t count, int64_t column) {
  const int64_t width = head.key_width, padded = ready.padded;
  Sums<V> sums;
  F delta[V];
  sweep<V, TAIL, false, true>(strip, width, delta, 0.0f, nullptr, ready.keys, ready.queries, &sums);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t line = row + i - head.folded;  // below 0: pending
    const Lines& lines_of = line < 0 ? head.pending : head.fresh;
    const float* value = lines_of.value + (line < 0 ? row + i : line) * lines_of.stride + column;
    const F keep = set1(ready.keep[i]), beta = set1(ready.beta[i]), key_query = set1(ready.key_query[i]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      delta[v] = mul(beta, sub(load_lane<V, TAIL>(strip, value, v), mul(keep, sums.key[v])));
      if (line >= 0) {
        float* out = head.out + line * head.out_stride + column;
        store_lane<V, TAIL>(strip, out, fma(key_query, delta[v], mul(keep, sums.query[v])), v);
      }
    }
    const bool draft = row + i >= head.certain;
    if (draft && i + 1 == count) return;  // nobody reads what the last draft would leave
    if (draft) strip.to = ready.draft, strip.to_stride = V * LANES;
    const float* key = ready.keys + i * padded;
    if (i + 1 < count)
      sweep<V, TAIL, true, true>(strip, width, delta, ready.keep[i], key, key + padded,
                                 ready.queries + (i + 1) * padded, &sums);
    else
      sweep<V, TAIL, true, false>(strip, width, delta, ready.keep[i], key, nullptr, nullptr, &sums);
    strip.from = strip.to, strip.from_stride = strip.to_stride;
  }
}

// `count` rows from `row` on through columns [first, first + columns) of the head, which are one block of its state.
void run_block(const Head& head, const Ready& ready, int64_t row, int64_t count, int64_t first, int64_t columns) {
  constexpr int V = 2;
  float* state = head.state + first * head.key_width;
  int64_t c = 0;
  for (; c + V * LANES <= columns; c += V * LANES)
    run_strip<V, false>(head, ready, {state + c, columns, state + c, columns, LANES}, row, count, first + c);
  for (; c < columns; c += LANES) {
    const int n = columns - c < LANES ? static_cast<int>(columns - c) : LANES;
    run_strip<1, true>(head, ready, {state + c, columns, state + c, columns, n}, row, count, first + c);
  }
}

Head head_of(const Job& job, const Run& run, int64_t h) {
  const int64_t* n = job.op->n;
  const int64_t key_heads = n[3], value_heads = n[4], key_width = n[5], value_width = n[6];
  const int64_t from = job.op->flags & TILED_HEADS ? h % key_heads : h / (value_heads / key_heads);
  const int64_t keys = key_heads * key_width, values = value_heads * value_width;
  Head head;
  head.key_width = key_width;
  head.value_width = value_width;
  head.folded = run.fold;
  head.certain = run.fold + run.keep;
  head.rows = run.fold + run.rows;
  const float* qkv = source(job, 3) + run.row * (2 * keys + values);
  const int64_t gate = run.row * value_heads + h;
  head.fresh = {qkv + from * key_width, qkv + keys + from * key_width, qkv + 2 * keys + h * value_width,
                2 * keys + values,      source(job, 4) + gate,         source(job, 5) + gate,
                value_heads};
  if (run.fold) {
    const int64_t stride = pending_floats(*job.op);
    const float *held = source(job, 10) + run.slot * n[8] * stride, *key = held + from * key_width;
    const float* gates = held + keys + values + h;
    head.pending = {key, key, held + keys + h * value_width, stride, gates, gates + value_heads, stride};  // no query: any will do
  }
  head.out_stride = values;
  head.out = target(job, 9) + run.row * values + h * value_width;
  head.decay = source(job, 6)[h];
  head.bias = source(job, 7)[h];
  head.state = target(job, 8) + (run.slot * value_heads + h) * key_width * value_width;
  return head;
}

// Blocks [from, to) of a head's columns, all rows of the run.
void run_head(const Head& head, const Run& run, const Ready& ready, int64_t from, int64_t to) {
  const int64_t first = from * STATE_COLUMNS;
  const int64_t end = to * STATE_COLUMNS < head.value_width ? to * STATE_COLUMNS : head.value_width;
  if (run.position == 0)
    __builtin_memset(head.state + first * head.key_width, 0, static_cast<size_t>((end - first) * head.key_width) * 4);
  for (int64_t row = 0, count; row < head.rows; row += count) {
    count = head.rows - row < ready.most ? head.rows - row : ready.most;
    if (row < head.certain && row + count < head.rows && row + count > head.certain) count = head.certain - row;  // drafts stay together
    for (int64_t i = 0; i < count; ++i) make_ready(head, row + i, ready, i);
    for (int64_t c = first; c < end; c += STATE_COLUMNS)
      run_block(head, ready, row, count, c, end - c < STATE_COLUMNS ? end - c : STATE_COLUMNS);
  }
}

}  // namespace

void short_conv(const Job& job) {
  const int64_t* n = job.op->n;
  const int64_t channels = n[3], ring = n[4] > 1 ? n[6] : 0, blocks = (channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
  const bool with_silu = job.op->flags & WITH_SILU;
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    const Run& run = job.runs[unit / blocks];
    const int64_t from = unit % blocks * CONV_CHANNELS;
    const int64_t to = from + CONV_CHANNELS < channels ? from + CONV_CHANNELS : channels;
    float* past = ring ? target(job, 5) + run.slot * ring * channels : nullptr;
    for (int64_t i = 0; i < run.rows; ++i) {
      const Taps taps = taps_of(job, run, i, past);
      float* out = target(job, 6) + (run.row + i) * channels;
      if (taps.count == 4)
        convolve_row<4>(taps, out, from, to, with_silu);
      else
        convolve_row<0>(taps, out, from, to, with_silu);
      if (run.rows - i > ring) continue;  // the ring keeps the last rows; its place is at best that of the oldest input, just read
      const float* x = source(job, 3) + (run.row + i) * channels;
      __builtin_memcpy(past + (run.position + i) % ring * channels + from, x + from, static_cast<size_t>(to - from) * 4);
    }
  }
}

void delta_rule(const Job& job) {
  const int64_t heads = job.op->n[4], parts = job.op->n[7], blocks = state_blocks(job.op->n[6]);
  const Ready ready = ready_in(job);
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    const Run& run = job.runs[unit / (heads * parts)];
    const int64_t head = unit / parts % heads, part = unit % parts;
    run_head(head_of(job, run, head), run, ready, part * blocks / parts, (part + 1) * blocks / parts);
  }
}

void gated_norm(const Job& job) {
  const int64_t width = job.op->n[1];
  const bool with_sigmoid = job.op->flags & WITH_SIGMOID;
  const float* weight = source(job, 1);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float *x = source(job, 0) + r * width, *gate = source(job, 2) + r * width;
    float* out = target(job, 3) + r * width;
    const F scale = set1(1.0f / sqrtf(mean_square(x, width) + job.op->f[0]));
    lanes(0, width, [&](int64_t i, int n) {
      const F g = load_some(gate + i, n), factor = with_sigmoid ? sigmoid(g) : silu(g);
      store_some(out + i, mul(mul(mul(load_some(x + i, n), scale), load_some(weight + i, n)), factor), n);
    });
  }
}

void sigmoid_mul(const Job& job) {
  const int64_t end = job.end * CHUNK_ELEMENTS < job.op->n[0] ? job.end * CHUNK_ELEMENTS : job.op->n[0];
  const float *x = source(job, 0), *gate = source(job, 1);
  lanes(job.begin * CHUNK_ELEMENTS, end, [&](int64_t i, int n) {
    store_some(target(job, 2) + i, mul(load_some(x + i, n), sigmoid(load_some(gate + i, n))), n);
  });
}

void add_scaled(const Job& job) {
  const int64_t width = job.op->n[1];
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* x = source(job, 0) + r * width;
    float* out = target(job, 2) + r * width;
    const F scale = sigmoid(set1(source(job, 1)[r]));
    lanes(0, width, [&](int64_t i, int n) {
      store_some(out + i, fma(load_some(x + i, n), scale, load_some(out + i, n)), n);
    });
  }
}

}  // namespace llmrun::LLMRUN_BUILD
