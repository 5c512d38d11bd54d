// What the program executor and the instruction-set builds share: the job a worker is handed and the kernel table.
#pragma once
#include <stdint.h>

#include "types.h"

namespace llmrun {

constexpr int SPLIT = 128;     // keys whose softmax is taken together; part of the numeric contract
constexpr int MOST_ROWS = 32;  // rows of one attention group
constexpr int KEY_BLOCK = 16;  // keys interleaved in a page
constexpr int MOST_HEAD_WIDTH = 4096;
constexpr int MOST_PANEL = 64;  // elements of values that a build widens together, at most

// Whether a page of that many tokens keeps its keys as [block][D][KEY_BLOCK]; else as rows, like values.
static inline bool keys_in_blocks(int64_t page_tokens) { return page_tokens % KEY_BLOCK == 0; }

// Consecutive rows of one sequence that read keys and values together.
struct AttentionGroup {
  int32_t row;
  int32_t rows;
  int32_t sequence;
  int32_t keys;        // most visible keys of a row
  int64_t first_unit;   // split mode: units before this group
  int64_t first_float;  // split mode: where its partial results start
  int32_t first_split;  // splits before it are seen by no row
};

static inline int64_t attention_splits(const AttentionGroup& group) {
  return (group.keys + SPLIT - 1) / SPLIT - group.first_split;
}

// Made when attention starts, from the positions of this run. Split mode: each (group, kv head, split) is a unit that
// leaves its partial result in `partials`; a second phase merges them in split order, as the direct mode does in place.
struct AttentionPlan {
  AttentionGroup* groups;
  int64_t count;
  int64_t units;
  bool split;
  float* partials;
};

// The rows of one sequence in a step with recurrent layers.
struct Run {
  int32_t row;
  int32_t rows;
  int32_t position;  // of the first row; 0: the state starts from zeros
  int32_t slot;
  int32_t keep;  // delta_rule: how many of the rows are certain, the first ones; the state is that after the last of them
  int32_t fold;  // delta_rule: rows that an earlier step left pending, taken up before the step's own
};

struct Job {
  const LlmrunOp* op;
  int64_t begin;  // units
  int64_t end;
  uint8_t* scratch;  // of this worker
  int32_t* status;   // set to a LlmrunStatus by report()
  const AttentionPlan* plan;
  const Run* runs;  // recurrent ops
};

static inline void report(const Job& job, int32_t status) { __atomic_store_n(job.status, status, __ATOMIC_RELAXED); }

using Kernel = void (*)(const Job&);

// One build's kernels. Units: rows, except linear (16-row groups x row panels), attention (see AttentionPlan),
// attention_merge (row x head), silu_mul, add and gelu (chunks of 1024 elements), rope (rows), expert_input and
// expert_hidden (slots), expert_linear (16-row groups x experts with rows), short_conv (runs x CONV_CHANNELS channels), delta_rule (runs x
// v-heads x parts of their columns), keep_pending (runs x pending rows), gated_norm and add_scaled (rows), sigmoid_mul (chunks).
struct KernelTable {
  const char* name;
  int32_t tile;  // rows a matrix tile holds; panels are multiples of it
  Kernel rms_norm, quantize, linear, silu_mul, add, rope, kv_store, attention, attention_merge, argmax, log_softmax;
  Kernel expert_route, expert_input, expert_linear, expert_hidden, expert_combine;
  Kernel stream_norm, silu_scaled, stream_mix, stream_add, stream_gate, index_store, index_select, sparse_attention;
  Kernel short_conv, delta_rule, gated_norm, sigmoid_mul, add_scaled;
  Kernel layer_norm, gelu;
  Kernel block_conv;
};

constexpr int64_t CHUNK_ELEMENTS = 1024;
constexpr int64_t SPARSE_TOKENS = 32;  // of sparse attention whose softmax is taken together; numeric contract
constexpr int64_t CONV_CHANNELS = 512;
// A v-head's state [Dk, Dv] is kept as blocks of 32 columns (the last may be narrower), each [Dk][columns]: a block stays
// in the first-level cache while rows stream past.
constexpr int64_t STATE_COLUMNS = 32;
constexpr int64_t DELTA_ROWS = 32;  // rows whose keys and queries are made ready together, at least

// The same number for an op; drafts of a sequence are never cut.
static inline int64_t delta_rows(const LlmrunOp& op) {
  return op.n[8] > DELTA_ROWS ? (op.n[8] + 15) / 16 * 16 : DELTA_ROWS;
}

// Floats of a pending row: its keys, values, a and b.
static inline int64_t pending_floats(const LlmrunOp& op) { return op.n[3] * op.n[5] + op.n[4] * (op.n[6] + 2); }

static inline int64_t state_blocks(int64_t value_width) { return (value_width + STATE_COLUMNS - 1) / STATE_COLUMNS; }

int64_t delta_scratch_bytes(const LlmrunOp& op);
constexpr int32_t GELU_TANH = 1;  // flag of gelu

// Rows of one attention group for `per_head` query heads on a kv head.
static inline int64_t attention_rows(int64_t per_head) {
  const int64_t rows = 48 / per_head;
  return rows < 1 ? 1 : rows > MOST_ROWS ? MOST_ROWS : rows;
}

// Floats of one query vector's partial result: its values, then maximum and sum.
static inline int64_t partial_floats(int64_t width) { return (width + 15) / 16 * 16 + 16; }

int64_t attention_scratch_bytes(const LlmrunOp& op);

extern const KernelTable generic_table;
#if defined(LLMRUN_HAVE_X86)
extern const KernelTable avx2_table;
extern const KernelTable avxvnni_table;
extern const KernelTable avx512_table;
extern const KernelTable amx_table;
#if defined(LLMRUN_HAVE_EMULATED)
extern const KernelTable avxvnni_emulated_table;
extern const KernelTable avx512_emulated_table;
extern const KernelTable amx_emulated_table;
#endif
#endif
#if defined(LLMRUN_HAVE_NEON)
extern const KernelTable neon_table;
#endif

// Kernels that need no special instructions.
void embed(const Job& job);
void gather(const Job& job);
void columns(const Job& job);
void pack(const Job& job);
void put_rows(const Job& job);
void rope_table(const Job& job);
void keep_pending(const Job& job);

}  // namespace llmrun
