from __future__ import annotations

import numpy
import pytest

from groupwise.models.gguf_reading import PIECE_BLOCKS, dequantize, read_quickly

gguf = pytest.importorskip("gguf")

KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16", "F32", "BF16"]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # random bytes hold infinite scales too
@pytest.mark.parametrize("name", KINDS)
def test_tensors_come_out_the_same_to_the_bit(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = numpy.random.default_rng(0)
    blocks_a_row = 3
    # More than a piece, and not a whole number of them.
    rows = PIECE_BLOCKS // blocks_a_row + 7
    data = generator.integers(0, 256, (rows, blocks_a_row * block_bytes), dtype=numpy.uint8)
    if name in ("F16", "F32"):  # these lie in a file as what they are
        data = generator.standard_normal((rows, 3)).astype(numpy.float16 if name == "F16" else numpy.float32)
    found, expected = dequantize(data, kind), gguf.dequantize(data, kind)
    assert found.shape == expected.shape == (rows, blocks_a_row * block_weights)
    assert found.dtype == expected.dtype
    assert numpy.array_equal(found, expected, equal_nan=True)


def test_gguf_is_itself_again_afterwards() -> None:
    before = gguf.GGUFReader, gguf.dequantize
    with pytest.raises(ZeroDivisionError), read_quickly():
        1 / (gguf.dequantize is not dequantize)
    assert (gguf.GGUFReader, gguf.dequantize) == before


def test_a_file_is_read_once_and_as_it_is(tmp_path: object) -> None:
    path = f"{tmp_path}/tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "ß", "東京", ""])
    writer.add_uint32("llama.context_length", 77)
    weights = numpy.arange(64, dtype=numpy.float32).reshape(2, 32)
    writer.add_tensor("blk.0.attn_q.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = gguf.GGUFReader(path)
    with read_quickly():
        quick = gguf.GGUFReader(path)
        assert gguf.GGUFReader(path) is quick
    assert list(quick.fields) == list(plain.fields)
    for name, field in plain.fields.items():
        assert [part.tolist() for part in quick.fields[name].parts] == [part.tolist() for part in field.parts]
    assert numpy.array_equal(quick.tensors[0].data, weights)
