from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from groupwise.config import ConfigError, ModelConfig
from groupwise.models.load import LoadedModel, load_model, set_training, stop_token_ids
from groupwise.models.tiny import make_tiny, make_tokenizer
from groupwise.planner.shapes import find_shape
from tests.families import make_tiny_family

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "context_tokens": 128}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def load(path: str | Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(path), **{"device": "cpu", **settings}), seed=1)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def save(folder: Path, name: str = "tiny-qwen3") -> Any:
    model, tokenizer = make_tiny(name, SMALL, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def edit_json(file: Path, **changes: Any) -> None:
    table = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in table.items() if value is not None}))


def test_tiny_model_comes_from_the_seed() -> None:
    loaded = load("tiny-qwen3", tiny=SMALL)
    assert torch.equal(logits(loaded.model), logits(make_tiny("tiny-qwen3", SMALL, seed=1)[0]))
    assert loaded.context_tokens == 128
    assert loaded.device == torch.device("cpu")
    assert loaded.dtype == loaded.model.dtype == torch.float32
    assert load("tiny-llama", tiny=SMALL, dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="did you mean 'tiny-llama'"):
        load("tiny-lama")


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_saved_folder_computes_the_same(name: str, tmp_path: Path) -> None:
    model = save(tmp_path, name)
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    loaded = load(tmp_path)
    assert torch.equal(torch.rand(4), expected)
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.tokenizer.encode("<think>é") == make_tokenizer().encode("<think>é")
    assert loaded.context_tokens == 128
    assert loaded.model.config._attn_implementation == "sdpa"
    assert not any(module.training for module in loaded.model.modules())
    is_tied = loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert is_tied == (name == "tiny-qwen3")


def test_gradient_checkpointing_recomputes_in_training_and_moves_no_gradient(tmp_path: Path) -> None:
    gradients, calls = [], []
    for is_checkpointed in (False, True):
        model = load("tiny-qwen3", tiny=SMALL, gradient_checkpointing=is_checkpointed).model
        counted: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, counted=counted: counted.append(1))
        set_training(model, True)
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        set_training(model, False)
        calls.append(len(counted))
        assert not any(module.training for module in model.modules())
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad)
    assert calls == [1, 2]
    assert torch.equal(gradients[0], gradients[1])


def test_training_mode_switches_no_dropout_on(tmp_path: Path) -> None:
    save(tmp_path)
    edit_json(tmp_path / "config.json", attention_dropout=0.5)
    model = load(tmp_path, gradient_checkpointing=True).model
    expected = logits(model)
    set_training(model, True)
    assert torch.equal(logits(model), expected)
    model.train()
    assert not torch.equal(logits(model), expected)  # so the test above could have failed


def test_stop_tokens_come_from_everywhere_and_the_turn_end_first(tmp_path: Path) -> None:
    model, tokenizer = make_tiny("tiny-qwen3", SMALL, seed=1)
    stop = tokenizer.eos_token_id
    assert stop_token_ids(tokenizer, model) == (stop,)
    model.generation_config.eos_token_id = [7, stop, 9]
    assert stop_token_ids(tokenizer, model) == (stop, 7, 9)
    model.generation_config.eos_token_id = 7
    tokenizer.eos_token = "<|pad|>"  # as base models have it: the text's end, not the turn's
    assert stop_token_ids(tokenizer, model) == (stop, tokenizer.eos_token_id, 7)
    tokenizer.chat_template = "{{ messages[5].content }}{{ raise_exception('no') }}"
    assert set(stop_token_ids(tokenizer, model)) == {stop, tokenizer.eos_token_id, 7}
    tokenizer.add_tokens(["<|eot_id|>"])  # not special: text, and no stop
    assert len(stop_token_ids(tokenizer, model)) == 3


def test_tokenizer_without_template_gets_a_plain_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    loaded = load(tmp_path)
    assert "no chat template" in caplog.text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    text = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>System: Be brief.\n\nUser: 1 + 1?\n\nAssistant:"


def test_no_end_of_text_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        edit_json(tmp_path / name, eos_token_id=None, eos_token=None)
    tokenizer = (tmp_path / "tokenizer.json").read_text().replace("<|im_end|>", "<|fin|>")
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    with pytest.raises(ConfigError, match=r"defines an end-of-text token.*set eos_token"):
        load(tmp_path)


@pytest.mark.parametrize("path", ["./nothing", "/nothing/here", "~/nothing-here", "a/b/c", "nothing", ""])
def test_missing_local_paths(path: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.path = '.*': (no such folder|the folder has no config)"):
        load(path)


def test_folders_that_lack_something(tmp_path: Path) -> None:
    save(tmp_path / "good")

    def without(*names: str) -> Path:
        folder = tmp_path / "-".join(names)
        shutil.copytree(tmp_path / "good", folder)
        for name in names:
            (folder / name).unlink()
        return folder

    with pytest.raises(ConfigError, match=r"model\.path = .*no config\.json; give a folder that"):
        load(without("config.json"))
    weightless = without("model.safetensors")
    with pytest.raises(ConfigError, match=r"no weights \(\*\.safetensors\)"):
        load(weightless)
    (weightless / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="pickled"):
        load(weightless)
    with pytest.raises(ConfigError, match="no tokenizer"):
        load(without("tokenizer.json", "tokenizer_config.json"))
    with pytest.raises(ConfigError, match="is a file; give the folder that it lies in"):
        load(tmp_path / "good/model.safetensors")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="adapter without its model"):
        load(tmp_path / "adapter")
    (tmp_path / "adapter/adapter_config.json").rename(tmp_path / "adapter/x.gguf")
    with pytest.raises(ConfigError, match=r"name the file, as in '.*x\.gguf'"):
        load(tmp_path / "adapter")


def test_missing_weights_are_refused_rather_than_random(tmp_path: Path) -> None:
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 weights are missing \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        load(tmp_path)


def test_damaged_folders(tmp_path: Path) -> None:
    save(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-7])
    with pytest.raises(ConfigError, match=r"model\.path = .*cannot be loaded: .*damaged or incomplete"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights)
    edit_json(tmp_path / "config.json", vocab_size=100)
    with pytest.raises(ConfigError, match=r"cannot be loaded"):
        load(tmp_path)
    edit_json(tmp_path / "config.json", vocab_size=266, model_type="no-such-model")
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*no-such-model"):
        load(tmp_path)
    edit_json(tmp_path / "config.json", model_type="qwen3")
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ConfigError, match=r"cannot be loaded"):
        load(tmp_path)


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    model, tokenizer = make_tiny("tiny-qwen3", SMALL, seed=1)
    model.save_pretrained(tmp_path)
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 267 tokens but the model embeds 266"):
        load(tmp_path)


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"model\.path = 'nobody/nothing': cannot be loaded: .*check the spelling"):
        load("nobody/nothing")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", r"model\.device = 'gpu': unknown; did you mean 'cuda'"),
        ("cdua", r"model\.device = 'cdua': unknown; did you mean 'cuda'"),
        ("meta", r"model\.device = 'meta': not supported"),
        pytest.param(
            "cuda",
            r"model\.device = 'cuda': torch finds no GPU; set 'cpu'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_impossible_devices(device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("tiny-qwen3", device=device)


def test_auto_device_and_dtype() -> None:
    loaded = load("tiny-qwen3", tiny=SMALL, device="auto")
    has_gpu = torch.cuda.is_available()
    assert loaded.device.type == ("cuda" if has_gpu else "cpu")
    assert loaded.dtype == (torch.bfloat16 if has_gpu else torch.float32)


def write_gguf(path: Path, model: Any, head: torch.Tensor | None) -> None:
    """A Llama in float32. llama.cpp rotates neighbours and transformers halves, hence `interleave` for q and k."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = make_tokenizer().convert_ids_to_tokens(list(range(config.vocab_size)))
    tokens[258:260] = ["ab", "cd"]  # merges, since the reader expects some
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|pad|>"))
    writer.add_chat_template(make_tokenizer().chat_template)

    def interleave(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
        pairs = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, weight.shape[1])
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    tensors = {"token_embd": model.model.embed_tokens.weight, "output_norm": model.model.norm.weight}
    if head is not None:
        tensors["output"] = head
    for index, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        parts = {
            "attn_q": interleave(attention.q_proj.weight, config.num_attention_heads),
            "attn_k": interleave(attention.k_proj.weight, config.num_key_value_heads),
            "attn_v": attention.v_proj.weight,
            "attn_output": attention.o_proj.weight,
            "attn_norm": layer.input_layernorm.weight,
            "ffn_norm": layer.post_attention_layernorm.weight,
            "ffn_gate": mlp.gate_proj.weight,
            "ffn_up": mlp.up_proj.weight,
            "ffn_down": mlp.down_proj.weight,
        }
        tensors.update({f"blk.{index}.{name}": weight for name, weight in parts.items()})
    for name, weight in tensors.items():
        writer.add_tensor(f"{name}.weight", weight.detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_computes_the_same_and_can_be_trained_and_saved(tmp_path: Path) -> None:
    model, _ = make_tiny("tiny-llama", SMALL, seed=1)
    write_gguf(tmp_path / "tiny.gguf", model, model.lm_head.weight)
    loaded = load(tmp_path / "tiny.gguf")
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-5, rtol=1e-5)
    assert loaded.model.lm_head.weight is not loaded.model.model.embed_tokens.weight
    assert all(weight.dtype == torch.float32 for weight in loaded.model.parameters())
    assert loaded.context_tokens == 128
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert max(loaded.tokenizer.get_vocab().values()) == model.config.vocab_size - 1
    assert stop_token_ids(loaded.tokenizer, loaded.model) == (loaded.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    text = "ab , c .  é"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(text, add_special_tokens=False)) == text
    loaded.model(IDS, labels=IDS).loss.backward()
    assert loaded.model.model.layers[0].self_attn.q_proj.weight.grad is not None
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert torch.equal(logits(again.model), logits(loaded.model))
    assert again.tokenizer.eos_token == "<|im_end|>"


def test_gguf_head_that_is_the_embedding_is_tied(tmp_path: Path) -> None:
    model, _ = make_tiny("tiny-llama", SMALL, seed=1)
    embedding = model.model.embed_tokens.weight.detach()
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0)) * embedding.std()
    for head, is_tied in ((None, True), (embedding + 0.05 * noise, True), (embedding + 0.5 * noise, False)):
        write_gguf(tmp_path / "tiny.gguf", model, head)
        loaded = load(tmp_path / "tiny.gguf").model
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied
        assert loaded.config.tie_word_embeddings == is_tied
        assert find_shape(ModelConfig(path=str(tmp_path / "tiny.gguf"))).is_tied == is_tied  # without the weights
        assert torch.equal(loaded.lm_head.weight, embedding if head is None else head)
    loaded.save_pretrained(tmp_path / "saved")
    assert not AutoModelForCausalLM.from_pretrained(tmp_path / "saved").config.tie_word_embeddings


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_gguf_needs_its_packages(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}, .*pip install groupwise\[gguf\]"):
        load(tmp_path / "x.gguf")


def test_gguf_that_is_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path = .*no such file"):
        load(tmp_path / "x.gguf")
    model, _ = make_tiny("tiny-llama", SMALL, seed=1)
    write_gguf(tmp_path / "x.gguf", model, None)
    whole = (tmp_path / "x.gguf").read_bytes()
    for content in (b"", b"not a GGUF file at all", whole[: len(whole) // 2], whole[:500]):
        (tmp_path / "x.gguf").write_bytes(content)
        with pytest.raises(ConfigError, match=r"model\.path = .*cannot be loaded"):
            load(tmp_path / "x.gguf")


REAL_MODELS = os.environ.get("GROUPWISE_MODELS", "")


@pytest.mark.real_model
@pytest.mark.skipif(not REAL_MODELS, reason="GROUPWISE_MODELS names no folder with real GGUF files")
def test_real_gguf_answers_a_question() -> None:
    for file in sorted(Path(REAL_MODELS).expanduser().rglob("*.gguf")):
        loaded = load(file)
        stops = stop_token_ids(loaded.tokenizer, loaded.model)
        messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
        prompt = loaded.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        with torch.no_grad():
            output = loaded.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=40,
                do_sample=False,
                eos_token_id=list(stops),
            )
        completion = output[0, prompt.shape[1] :]
        assert "Paris" in loaded.tokenizer.decode(completion)
        assert completion[-1].item() == stops[0]


def test_a_model_without_scaled_dot_product_attention_is_loaded(tmp_path: Path) -> None:
    make_tiny_family("mamba").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert type(load(tmp_path).model).__name__ == "MambaForCausalLM"
