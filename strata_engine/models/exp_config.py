"""Numbers of the qwen4_exp family: residual streams, index of sparse attention, n-gram tables. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata_engine.errors import CorruptFile, UsageError
from strata_engine.formats.base import WeightSource
from strata_engine.models.fields import Fields
from strata_engine.models.ngram_constants import make_multipliers, make_offsets, make_sizes
from strata_kernels.ops_streams import Ngrams, Sparse

_CONSTANTS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")


@dataclass(frozen=True)
class TableConfig:
    """A layer's n-gram table: `rows` of `row_width`; `kernel`, `dilation` of the convolution behind it."""

    ngrams: Ngrams
    rows: int
    row_width: int
    kernel: int
    dilation: int

    @property
    def width(self) -> int:
        """Elements that a token reads."""
        return len(self.ngrams.sizes) * self.row_width

    @property
    def past_rows(self) -> int:
        """Rows that the convolution looks back."""
        return (self.kernel - 1) * self.dilation


@dataclass(frozen=True)
class ExpConfig:
    """`streams` residual streams with mixers of rank `low_rank`; `index_heads` queries of `index_width`; the tables."""

    streams: int
    low_rank: int
    index_heads: int
    index_width: int
    sparse: Sparse
    tables: tuple[tuple[int, TableConfig], ...] = ()

    def table(self, layer: int) -> TableConfig | None:
        """The table before a layer."""
        return dict(self.tables).get(layer)


def hf_exp(source: WeightSource, fields: Fields) -> ExpConfig:
    """From config.json; constants of the tables from the checkpoint where it has them. Raises CorruptFile."""
    if fields.integer("indexer_kv_heads", 1) != 1:
        raise UsageError(f"{fields.where}: an index of more than one key head is not supported")
    found = ExpConfig(
        streams=fields.integer("hc_count", 4, least=2),
        low_rank=fields.integer("hc_lowrank", 320),
        index_heads=fields.integer("indexer_n_heads"),
        index_width=fields.integer("indexer_head_dim"),
        sparse=_sparse(fields, fields.integer("indexer_budget"), fields.integer("indexer_compress_ratio")),
    )
    layers = sorted(fields.integers("ple_layer_ids"))  # counted from 1
    tables = tuple((layer - 1, _hf_table(source, fields, layer - 1, index)) for index, layer in enumerate(layers))
    return replace(found, tables=tables)


def _hf_table(source: WeightSource, fields: Fields, layer: int, index: int) -> TableConfig:
    places, each = fields.integer("ngram_size", 3, least=2), fields.integer("heads_per_ngram", 8)
    heads, vocab = (places - 1) * each, fields.integer("vocab_size")
    width = fields.integer("ple_embed_dim", fields.integer("hidden_size"))
    sizes = make_sizes(fields.integer("ngram_vocab_size_base", 20_000_000, least=2), heads, index)
    multipliers = make_multipliers(vocab, places, fields.integer("seed", 1234, least=0), index)
    ngrams = Ngrams(multipliers, sizes, make_offsets(sizes), _first_end(fields))
    ngrams = _stored(source, f"model.layers.{layer}.ple.ple_embedding.", ngrams)
    unit = fields.integer("make_ngram_vocab_size_divisible_by", 128)
    if width % heads:
        raise CorruptFile(f"{fields.where}: ple_embed_dim {width} is no multiple of {heads} hash functions")
    table = TableConfig(
        ngrams=ngrams,
        rows=-(-sum(ngrams.sizes) // unit) * unit,
        row_width=width // heads,
        kernel=fields.integer("ple_conv_kernel_size", 4),
        dilation=places,
    )
    return _checked(table, vocab, fields)


def _first_end(fields: Fields) -> int:
    """The end-of-sequence id; of a list the first."""
    ends = fields.whole_numbers("eos_token_id")
    if not ends:
        raise CorruptFile(f"{fields.where}: eos_token_id is missing; the n-gram table needs it")
    return ends[0]


def _stored(source: WeightSource, prefix: str, made: Ngrams) -> Ngrams:
    """The constants that the checkpoint itself holds as int64 tensors, in place of those made from the config."""
    if any(prefix + name not in source.tensors() for name in _CONSTANTS):
        return made
    values: list[tuple[int, ...]] = []
    for name in _CONSTANTS:
        meta = source.tensors()[prefix + name]
        if meta.type != "I64":
            raise CorruptFile(f"{meta.path}: tensor {meta.name} is stored as {meta.type}, expected I64")
        values.append(tuple(memoryview(bytes(source.read(meta.name))).cast("q")))
    return Ngrams(*values, eos=made.eos)


def gguf_exp(source: WeightSource, fields: Fields, prefix: str) -> ExpConfig:
    """From GGUF keys. Raises CorruptFile, UsageError."""

    def key(name: str) -> str:
        return f"{prefix}.{name}"

    ratios = {ratio for ratio in fields.whole_numbers(key("attention.compress_ratios")) if ratio}
    if len(ratios) != 1:
        text = f"{fields.where}: {prefix}.attention.compress_ratios has {len(ratios)} sizes of blocks, expected one"
        raise CorruptFile(text, hint="the file was converted without the index of its sparse attention")
    found = ExpConfig(
        streams=fields.integer(key("hyper_connection.count"), least=2),
        low_rank=fields.integer(key("hyper_connection.low_rank")),
        index_heads=fields.integer(key("attention.indexer.head_count")),
        index_width=fields.integer(key("attention.indexer.key_length")),
        sparse=_sparse(fields, fields.integer(key("attention.indexer.top_k")), ratios.pop()),
    )
    layers = fields.whole_numbers(key("ple.layers"))
    if len(layers) > 1:
        raise UsageError(f"{fields.where}: n-gram tables in more than one layer are not supported in GGUF files")
    return replace(found, tables=tuple((layer, _gguf_table(source, fields, prefix)) for layer in layers))


def _gguf_table(source: WeightSource, fields: Fields, prefix: str) -> TableConfig:
    def numbers(name: str) -> tuple[int, ...]:
        return tuple(fields.whole_numbers(f"{prefix}.ple.{name}"))

    stored = source.tensors().get("per_layer_token_embd.weight")
    if stored is None or len(stored.shape) != 2:
        raise CorruptFile(f"{fields.where}: tensor per_layer_token_embd.weight is missing or not a matrix")
    multipliers, sizes, offsets = numbers("layer_multipliers"), numbers("head_vocab_sizes"), numbers("head_offsets")
    table = TableConfig(
        ngrams=Ngrams(multipliers, sizes, offsets, fields.integer(f"{prefix}.ple.eos_token_id", least=0)),
        rows=stored.shape[0],
        row_width=fields.integer(f"{prefix}.embedding_length_per_layer_input"),
        kernel=fields.integer(f"{prefix}.ple.conv_kernel"),
        dilation=fields.integer(f"{prefix}.ple.ngram_size"),
    )
    return _checked(table, source.tensors()["token_embd.weight"].shape[0], fields)


def _sparse(fields: Fields, budget: int, ratio: int) -> Sparse:
    if budget % ratio:
        raise CorruptFile(f"{fields.where}: an index of {budget} tokens is not whole blocks of {ratio}")
    return Sparse(budget // ratio, ratio)


def _checked(table: TableConfig, vocab: int, fields: Fields) -> TableConfig:
    try:
        table.ngrams.check(vocab)
    except ValueError as error:
        raise CorruptFile(f"{fields.where}: {error}") from error
    last = max(size + at for size, at in zip(table.ngrams.sizes, table.ngrams.offsets, strict=True))
    if last > table.rows:
        raise CorruptFile(f"{fields.where}: the n-gram table has {table.rows} rows, its hashes reach {last}")
    return table
