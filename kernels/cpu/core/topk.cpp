// Partial selection for sampling: the k largest of a row, without sorting the rest.
#include <algorithm>
#include <vector>

#include "../abi.h"

namespace {

struct Entry {
  float value;
  int32_t id;
};

// Better first: larger value, then lower id.
bool before(const Entry& a, const Entry& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

}  // namespace

extern "C" int64_t llmrun_top_k(const float* values, int64_t count, int64_t k, float* out_values, int32_t* out_ids) {
  if (!values || !out_values || !out_ids || count <= 0 || k <= 0) return 0;
  k = std::min(k, count);
  std::vector<Entry> heap;  // worst entry first, so that most values are turned away by one comparison
  heap.reserve(static_cast<size_t>(k));
  for (int64_t i = 0; i < count; ++i) {
    const float value = values[i] == values[i] ? values[i] : -__builtin_inff();  // NaN is never wanted
    const Entry entry = {value, static_cast<int32_t>(i)};
    if (static_cast<int64_t>(heap.size()) < k) {
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), before);
    } else if (value > heap.front().value) {
      std::pop_heap(heap.begin(), heap.end(), before);
      heap.back() = entry;
      std::push_heap(heap.begin(), heap.end(), before);
    }
  }
  std::sort(heap.begin(), heap.end(), before);
  for (size_t i = 0; i < heap.size(); ++i) {
    out_values[i] = heap[i].value;
    out_ids[i] = heap[i].id;
  }
  return static_cast<int64_t>(heap.size());
}
