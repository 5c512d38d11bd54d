// Mixtures of experts in a build: choosing experts, products of rows sorted by expert, and the weighted sum.
//
// A slot is one (row, choice) pair; slots are sorted by expert (core/experts.h). The products themselves are those of
// linear, quantize and silu_mul: each is handed an op of its own for the rows of one expert, so a slot's value is what a
// plain matrix product would give for that row, whatever else its expert has to do. No padding: an expert without rows
// costs nothing.
#include "../core/experts.h"

#include <string.h>

#include "simd.h"

namespace llmrun::LLMRUN_BUILD {

void quantize(const Job& job);
void linear(const Job& job);
void silu_mul(const Job& job);

namespace {

// Keeps the k largest logits so far, best first, lowest id first among equals. NaN is never better than a number.
void insert(float value, int32_t id, int64_t have, int64_t k, float* values, int32_t* ids) {
  int64_t at = have < k ? have : k;
  if (at == k && !(value > values[k - 1])) return;
  if (at == k) --at;
  for (; at > 0 && value > values[at - 1]; --at) {
    values[at] = values[at - 1];
    ids[at] = ids[at - 1];
  }
  values[at] = value;
  ids[at] = id;
}

float sum_of_exponents(const float* logits, int64_t count, float most) {
  F sum = zero();
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) sum = add(sum, exp(sub(load(logits + i), set1(most))));
  if (i < count) {
    const int n = static_cast<int>(count - i);
    sum = add(sum, keep_below(exp(sub(load_n(logits + i, n), set1(most))), n));
  }
  return hsum(sum);
}

// The op `kernel` is run with for slots [begin, end) of one expert whose slots are [entry.begin, entry.end).
Job job_like(const Job& job, const LlmrunOp& op, int64_t begin, int64_t end) {
  Job own = job;
  own.op = &op;
  own.begin = begin;
  own.end = end;
  return own;
}

uint8_t* at_slot(void* blocks, int64_t slot, int64_t cols, int32_t flags) {
  const int64_t planes = flags & FINE ? 2 : 1;
  return static_cast<uint8_t*>(blocks) + slot * (cols / BLOCK) * planes * static_cast<int64_t>(sizeof(XBlock));
}

// Quantises slots [job.begin, job.end) of x [slots, cols], each expert's rows in tiles of their own.
void quantize_slots(const Job& job, const int32_t* plan, const float* x, int64_t cols, void* blocks) {
  const ExpertPlan used(plan);
  for (int64_t i = used.find(job.begin); i < used.count(); ++i) {
    const ExpertRows rows = used.rows(i);
    if (rows.begin >= job.end) break;
    LlmrunOp op = {};
    op.code = LLMRUN_QUANTIZE;
    op.flags = job.op->flags & FINE;
    op.n[0] = rows.end - rows.begin;
    op.n[1] = cols;
    op.p[0] = const_cast<float*>(x + rows.begin * cols);
    op.p[1] = at_slot(blocks, rows.begin, cols, op.flags);
    const int64_t begin = job.begin > rows.begin ? job.begin - rows.begin : 0;
    const int64_t end = (job.end < rows.end ? job.end : rows.end) - rows.begin;
    quantize(job_like(job, op, begin, end));
  }
}

// take(slot, columns): for slots [job.begin, job.end), with the columns of the slot's expert in their order.
template <class Take>
void each_slot(const Job& job, const int32_t* plan, const int32_t* columns, int64_t cols, Take take) {
  const ExpertPlan used(plan);
  for (int64_t i = used.find(job.begin); i < used.count(); ++i) {
    const ExpertRows rows = used.rows(i);
    const int64_t end = job.end < rows.end ? job.end : rows.end;
    for (int64_t s = job.begin > rows.begin ? job.begin : rows.begin; s < end; ++s) take(s, columns + rows.expert * cols);
  }
}

// Groups [from, to) of one expert's matrices, for all its slots.
void multiply(const Job& job, const ExpertRows& rows, int64_t from, int64_t to) {
  const LlmrunOp& all = *job.op;
  const int64_t cols = all.n[1], input = all.n[9] ? 0 : rows.begin;
  LlmrunOp op = {};
  op.code = LLMRUN_LINEAR;
  op.flags = all.flags & FINE;
  op.n[0] = op.n[11] = rows.end - rows.begin;
  op.n[1] = cols;
  op.n[2] = all.n[3];
  op.n[12] = all.n[8];
  op.p[0] = static_cast<float*>(all.p[0]) + input * cols;
  if (all.p[1]) op.p[1] = at_slot(all.p[1], input, cols, op.flags);
  for (int64_t i = 0; i < all.n[3]; ++i) {
    op.n[3 + 2 * i] = all.n[4 + 2 * i];
    op.n[4 + 2 * i] = all.n[5 + 2 * i];
    op.p[2 + 3 * i] = static_cast<void**>(all.p[3 + 2 * i])[rows.expert];
    op.p[3 + 3 * i] = static_cast<float*>(all.p[4 + 2 * i]) + rows.begin * all.n[4 + 2 * i];
  }
  linear(job_like(job, op, from, to));
}

}  // namespace

void expert_route(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t experts = op.n[1], k = op.n[2];
  for (int64_t r = job.begin; r < job.end; ++r) {
    const float* logits = static_cast<const float*>(op.p[0]) + r * experts;
    int32_t* ids = static_cast<int32_t*>(op.p[1]) + r * k;
    float* weights = static_cast<float*>(op.p[2]) + r * k;
    for (int64_t e = 0; e < experts; ++e) {
      const float value = logits[e] == logits[e] ? logits[e] : -__builtin_inff();
      insert(value, static_cast<int32_t>(e), e, k, weights, ids);
    }
    const float most = weights[0];
    float sum = 0.0f;
    for (int64_t j = 0; j < k; ++j) {
      weights[j] = exp1(weights[j] - most);
      sum += weights[j];
    }
    if (!(op.flags & RENORMALISE)) sum = sum_of_exponents(logits, experts, most);
    for (int64_t j = 0; j < k; ++j) weights[j] /= sum;
  }
}

void expert_input(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t k = op.n[1], cols = op.n[2];
  const int32_t *order = static_cast<const int32_t*>(op.p[1]), *plan = static_cast<const int32_t*>(op.p[2]);
  const float* x = static_cast<const float*>(op.p[0]);
  float* out = static_cast<float*>(op.p[3]);
  if (op.p[5])
    each_slot(job, plan, static_cast<const int32_t*>(op.p[5]), cols, [&](int64_t s, const int32_t* columns) {
      const float* row = x + order[s] / k * cols;
      for (int64_t j = 0; j < cols; ++j) out[s * cols + j] = row[columns[j]];
    });
  else
    for (int64_t s = job.begin; s < job.end; ++s)
      memcpy(out + s * cols, x + order[s] / k * cols, static_cast<size_t>(cols) * 4);
  if (op.p[4]) quantize_slots(job, plan, out, cols, op.p[4]);
}

void expert_hidden(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t cols = op.n[1], first = job.begin * cols;
  const int32_t* plan = static_cast<const int32_t*>(op.p[2]);
  float *gate = static_cast<float*>(op.p[0]), *up = static_cast<float*>(op.p[1]);
  LlmrunOp product = {};
  product.code = LLMRUN_SILU_MUL;
  product.n[0] = (job.end - job.begin) * cols;
  product.p[0] = product.p[2] = gate + first;
  product.p[1] = up + first;
  silu_mul(job_like(job, product, 0, (product.n[0] + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS));
  if (op.p[4])  // up has been used up
    each_slot(job, plan, static_cast<const int32_t*>(op.p[4]), cols, [&](int64_t s, const int32_t* columns) {
      for (int64_t j = 0; j < cols; ++j) up[s * cols + j] = gate[s * cols + columns[j]];
    });
  if (op.p[3]) quantize_slots(job, plan, op.p[4] ? up : gate, cols, op.p[3]);
}

// Unit u is group u % G of the u / G th expert that has rows, G (n[8]) being the groups of all matrices of an expert.
void expert_linear(const Job& job) {
  const ExpertPlan used(static_cast<const int32_t*>(job.op->p[2]));
  const int64_t groups = job.op->n[8];
  for (int64_t unit = job.begin; unit < job.end;) {
    const int64_t i = unit / groups, left = job.end - i * groups;
    const int64_t to = left < groups ? left : groups;
    multiply(job, used.rows(i), unit % groups, to);
    unit = i * groups + to;
  }
}

void expert_combine(const Job& job) {
  const LlmrunOp& op = *job.op;
  const int64_t k = op.n[1], width = op.n[2];
  const float* values = static_cast<const float*>(op.p[0]);
  for (int64_t r = job.begin; r < job.end; ++r) {
    const int32_t* place = static_cast<const int32_t*>(op.p[1]) + r * k;
    const float* weights = static_cast<const float*>(op.p[2]) + r * k;
    float* out = static_cast<float*>(op.p[3]) + r * width;
    for (int64_t i = 0; i < width; i += LANES) {
      const int n = static_cast<int>(width - i < LANES ? width - i : LANES);
      F sum = zero();
      for (int64_t j = 0; j < k; ++j) sum = fma(set1(weights[j]), load_n(values + place[j] * width + i, n), sum);
      if (op.flags & ADD_TO_OUT) sum = add(sum, load_n(out + i, n));
      store_n(out + i, sum, n);
    }
  }
}

}  // namespace llmrun::LLMRUN_BUILD
