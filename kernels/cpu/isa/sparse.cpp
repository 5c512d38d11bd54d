// Block-sparse attention: index keys, the choice of blocks, and attention over what was chosen.
//
// Everything a row computes depends on its own sequence alone, in one order: blocks by number, tokens by position.
#include <math.h>

#include "../core/half.h"
#include "../core/ngrams.h"
#include "vectors.h"

namespace llmrun::LLMRUN_BUILD {
namespace {

constexpr int64_t TOKENS = SPARSE_TOKENS;

template <class T>
OP const T* pointer(const Job& job, int i) {
  return static_cast<const T*>(job.op->p[i]);
}

float dot(const float* a, const float* b, int64_t width) {
  F sum = zero();
  lanes(0, width, [&](int64_t i, int n) { sum = fma(load_some(a + i, n), load_some(b + i, n), sum); });
  return hsum(sum);
}

// Pages of a row's sequence; null when a row or one of the pages it needs lies outside the cache (reported).
const int32_t* pages_of(const Job& job, const int32_t* table, int32_t sequence, int64_t sequences, int64_t most_pages,
                        int64_t needed, int64_t pages) {
  bool good = sequence >= 0 && sequence < sequences && needed <= most_pages;
  const int32_t* own = table + sequence * most_pages;
  for (int64_t i = 0; good && i < needed; ++i) good = own[i] >= 0 && own[i] < pages;
  if (!good) report(job, LLMRUN_BAD_ROW);
  return good ? own : nullptr;
}

// The raw key of the token `back` rows before row r of the same sequence: of this step, or stored earlier.
struct Store {
  const Job& job;
  int64_t width, page_tokens, pages, group, pairs, sequences, most_pages;
  const float* keys;
  const int32_t *positions, *sequence, *slots, *table;

  explicit Store(const Job& j)
      : job(j), width(j.op->n[1]), page_tokens(j.op->n[2]), pages(j.op->n[3]), group(j.op->n[4]), pairs(j.op->n[5]),
        sequences(j.op->n[6]), most_pages(j.op->n[7]), keys(pointer<float>(j, 0)), positions(pointer<int32_t>(j, 3)),
        sequence(pointer<int32_t>(j, 4)), slots(pointer<int32_t>(j, 5)), table(pointer<int32_t>(j, 6)) {}

  float* raw(int64_t slot) const { return static_cast<float*>(job.op->p[1]) + slot * width; }

  const float* key_before(int64_t r, int64_t back) const {
    if (r >= back && sequence[r - back] == sequence[r]) return keys + (r - back) * width;
    return raw(slots[r] - back);  // a block lies in one page, so its tokens are neighbours
  }

  void rotate(float* key, int64_t position) const {
    const float* frequencies = pointer<float>(job, 8);
    const bool adjacent = job.op->flags & ADJACENT_PAIRS;
    const int64_t step = adjacent ? 2 : 1, other = adjacent ? 1 : pairs;
    for (int64_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      const float c = cosf(angle) * job.op->f[1], s = sinf(angle) * job.op->f[1];
      float* a = key + i * step;
      const float x = *a, y = a[other];
      *a = x * c - y * s;
      a[other] = y * c + x * s;
    }
  }

  void make_block(int64_t r) const {
    float* out = static_cast<float*>(job.op->p[2]) + slots[r] / group * width;
    const float* weight = pointer<float>(job, 7);
    const F share = set1(1.0f / static_cast<float>(group));
    lanes(0, width, [&](int64_t i, int n) {
      F sum = load_some(key_before(r, group - 1) + i, n);
      for (int64_t back = group - 2; back >= 0; --back) sum = add(sum, load_some(key_before(r, back) + i, n));
      store_some(out + i, mul(sum, share), n);
    });
    const F scale = set1(1.0f / sqrtf(mean_square(out, width) + job.op->f[0]));
    lanes(0, width, [&](int64_t i, int n) {
      store_some(out + i, mul(mul(load_some(out + i, n), scale), load_some(weight + i, n)), n);
    });
    rotate(out, positions[r] + 1 - group);
  }
};

// One row of one group of query heads that share a kv head.
struct Attend {
  const Job& job;
  int64_t heads, kv_heads, width, padded, page_tokens, group, unit_heads;
  const int32_t* own;                       // pages of the row's sequence
  float *query, *keys, *values, *state, *weights;  // [U][padded], [TOKENS][padded] x 2, [U][padded + 16], [U][TOKENS]
  uint16_t* staged;                                // [padded]: a key of two-byte elements, taken out of its block

  explicit Attend(const Job& j)
      : job(j), heads(j.op->n[1]), kv_heads(j.op->n[2]), width(j.op->n[3]), padded((j.op->n[3] + 15) / 16 * 16),
        page_tokens(j.op->n[4]), group(j.op->n[9]), unit_heads(j.op->n[11]), own(nullptr) {
    query = reinterpret_cast<float*>(j.scratch);
    keys = query + unit_heads * padded;
    values = keys + TOKENS * padded;
    state = values + TOKENS * padded;
    weights = state + unit_heads * (padded + 16);
    staged = reinterpret_cast<uint16_t*>(weights + unit_heads * TOKENS);
  }

  void widen(const uint8_t* from, float* to) const {
    const int64_t type = job.op->n[8];
    const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
    if (type == LLMRUN_F32) {
      __builtin_memcpy(to, from, static_cast<size_t>(width) * 4);
      return;
    }
    lanes(0, width, [&](int64_t i, int n) {
      const F v = type == LLMRUN_F16 ? (n == LANES ? load_half(half + i) : load_half_n(half + i, n))
                                     : (n == LANES ? load_bfloat(half + i) : load_bfloat_n(half + i, n));
      store_some(to + i, v, n);
    });
  }

  // Key `at` of a head's keys in a page that keeps them in blocks, element by element.
  template <class Element>
  void take_out(const uint8_t* page, int64_t at, Element* to) const {
    const Element* from = reinterpret_cast<const Element*>(page) + at / KEY_BLOCK * KEY_BLOCK * width + at % KEY_BLOCK;
    for (int64_t d = 0; d < width; ++d) to[d] = from[d * KEY_BLOCK];
  }

  void fetch_key(const uint8_t* page, int64_t at, float* to) const {
    const bool wide = job.op->n[8] == LLMRUN_F32;
    if (!keys_in_blocks(page_tokens)) return widen(page + at * width * (wide ? 4 : 2), to);
    if (wide) return take_out(page, at, to);
    take_out(page, at, staged);
    widen(reinterpret_cast<const uint8_t*>(staged), to);
  }

  // Keys and values of `count` tokens that lie in one page.
  void fetch(int64_t kv_head, int64_t token, int64_t count, int64_t at) const {
    const int64_t bytes = job.op->n[8] == LLMRUN_F32 ? 4 : 2;
    const int64_t page = (own[token / page_tokens] * kv_heads + kv_head) * page_tokens * width * bytes;
    const uint8_t *k = pointer<uint8_t>(job, 2) + page, *v = pointer<uint8_t>(job, 3) + page;
    const int64_t row = token % page_tokens;
    for (int64_t j = 0; j < count; ++j) {
      widen(v + (row + j) * width * bytes, values + (at + j) * padded);
      fetch_key(k, row + j, keys + (at + j) * padded);
    }
  }

  void start(int64_t row, int64_t first_head) const {
    const float* q = pointer<float>(job, 0) + (row * heads + first_head) * width;
    const F scale = set1(job.op->f[0]);
    for (int64_t h = 0; h < unit_heads; ++h) {
      lanes(0, width, [&](int64_t i, int n) {
        store_some(query + h * padded + i, mul(load_some(q + h * width + i, n), scale), n);
      });
      for (int64_t i = 0; i < padded + 16; ++i) state[h * (padded + 16) + i] = 0.0f;
      state[h * (padded + 16) + padded] = -__builtin_inff();
    }
  }

  // Folds `count` fetched tokens into the running maximum, sum and values of each head.
  void fold(int64_t count) const {
    for (int64_t h = 0; h < unit_heads; ++h) {
      float *own_state = state + h * (padded + 16), *most = own_state + padded, *sum = most + 1;
      float* w = weights + h * TOKENS;
      float top = *most;
      for (int64_t j = 0; j < count; ++j) {
        w[j] = dot(query + h * padded, keys + j * padded, width);
        top = w[j] > top ? w[j] : top;
      }
      const float keep = *most == -__builtin_inff() ? 0.0f : exp1(*most - top);
      *most = top;
      *sum *= keep;
      F added = zero();
      lanes(0, count, [&](int64_t i, int n) {
        const F e = exp(sub(load_some(w + i, n), set1(top)));
        store_some(w + i, e, n);
        added = add(added, keep_below(e, n));
      });
      *sum += hsum(added);
      lanes(0, width, [&](int64_t i, int n) {
        F total = mul(load_some(own_state + i, n), set1(keep));
        for (int64_t j = 0; j < count; ++j) total = fma(set1(w[j]), load_some(values + j * padded + i, n), total);
        store_some(own_state + i, total, n);
      });
    }
  }

  void finish(int64_t row, int64_t first_head) const {
    float* out = static_cast<float*>(job.op->p[7]) + (row * heads + first_head) * width;
    for (int64_t h = 0; h < unit_heads; ++h) {
      const float* from = state + h * (padded + 16);
      const F scale = set1(1.0f / from[padded + 1]);
      lanes(0, width, [&](int64_t i, int n) { store_some(out + h * width + i, mul(load_some(from + i, n), scale), n); });
    }
  }

  // Attends to the chosen blocks and the tokens from `tail` up to the row's own.
  void run(int64_t row, int64_t first_head, int64_t position) const {
    const int64_t kv_head = first_head / (heads / kv_heads), blocks = job.op->n[10], tail = (position + 1) / group * group;
    const int32_t* chosen = pointer<int32_t>(job, 1) + row * blocks;
    int64_t held = 0;
    start(row, first_head);
    const auto take = [&](int64_t token, int64_t count) {
      while (count) {
        const int64_t piece = count < TOKENS - held ? count : TOKENS - held;
        fetch(kv_head, token, piece, held);
        held += piece, token += piece, count -= piece;
        if (held == TOKENS) fold(held), held = 0;
      }
    };
    for (int64_t i = 0; i < blocks; ++i) {
      if (chosen[i] < 0 || (chosen[i] + int64_t(1)) * group > tail) return report(job, LLMRUN_BAD_ROW);
      take(chosen[i] * group, group);
    }
    take(tail, position + 1 - tail);
    if (held) fold(held);
    finish(row, first_head);
  }
};

}  // namespace

void index_store(const Job& job) {
  const Store store(job);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t slot = store.slots[r];
    if (slot < 0 || slot >= store.pages * store.page_tokens) {
      report(job, LLMRUN_BAD_SLOT);
      continue;
    }
    __builtin_memcpy(store.raw(slot), store.keys + r * store.width, static_cast<size_t>(store.width) * 4);
    const bool last = (store.positions[r] + 1) % store.group == 0;
    if (last && slot % store.group == store.group - 1) store.make_block(r);
  }
}

void index_select(const Job& job) {
  const int64_t *n = job.op->n, heads = n[1], width = n[2], page_tokens = n[3], group = n[5], k = n[6];
  const int64_t in_page = page_tokens / group;
  const int32_t *positions = pointer<int32_t>(job, 2), *sequences = pointer<int32_t>(job, 3);
  const float root = sqrtf(static_cast<float>(width));
  Scored* scored = reinterpret_cast<Scored*>(job.scratch);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int64_t position = positions[r], complete = (position + 1) / group;
    int32_t* dense = static_cast<int32_t*>(job.op->p[6]) + r;
    *dense = complete <= k ? positions[r] : 0;
    if (complete <= k) continue;
    const int32_t* own = pages_of(job, pointer<int32_t>(job, 4), sequences[r], n[7], n[8],
                                  (complete + in_page - 1) / in_page, n[4]);
    if (!own) continue;
    const float* q = pointer<float>(job, 0) + r * heads * width;
    for (int64_t b = 0; b < complete; ++b) {
      const float* key = pointer<float>(job, 1) + (own[b / in_page] * in_page + b % in_page) * width;
      float sum = 0.0f;
      for (int64_t h = 0; h < heads; ++h) {
        const float one = dot(q + h * width, key, width);
        if (one > 0) sum += one;  // NaN counts as nothing
      }
      scored[b] = {sum / root, static_cast<int32_t>(b)};
    }
    choose_blocks(scored, complete, k, static_cast<int32_t*>(job.op->p[5]) + r * k);
  }
}

// Units: rows x kv heads x parts of their heads.
void sparse_attention(const Job& job) {
  Attend task(job);
  const int64_t* n = job.op->n;
  const int64_t parts = task.heads / task.unit_heads;
  const int32_t *positions = pointer<int32_t>(job, 4), *sequences = pointer<int32_t>(job, 5);
  for (int64_t unit = job.begin; unit < job.end; ++unit) {
    const int64_t row = unit / parts, position = positions[row];
    if ((position + 1) / task.group <= n[10]) continue;
    task.own = pages_of(job, pointer<int32_t>(job, 6), sequences[row], n[6], n[7], position / task.page_tokens + 1, n[5]);
    if (task.own) task.run(row, unit % parts * task.unit_heads, position);
  }
}

}  // namespace llmrun::LLMRUN_BUILD
