"""Models of transformers, made from small configurations.

``pip install --no-deps transformers tokenizers huggingface_hub hf-xet regex filelock pyyaml tqdm httpx``
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
import transformers

from zoo.entry import Entry

OF_TOKENS = """
    albert apertus apertus1p5_text arcee bart beam bert bert-generation big_bird bigbird_pegasus biogpt bitnet bloom
    camembert clip_text_model cohere cohere2 convbert cosmos3_edge_text cpmant ctrl cwm data2vec-text deberta
    deberta-v2 diffllama distilbert doge dpr electra ernie ernie4_5 eurobert exaone exaone4 falcon
    falcon_mamba flaubert flint fnet gemma gemma2 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox
    gpt_neox_japanese gradium_phonon_tts granite granite_docling_text granite_swa gte helium higgs_audio_v2
    hyperclovax ibert imagegpt internlm3 iquestcoder jais2 jetmoe jina_embeddings_v3 layoutlm led lfm2 llama
    llama4_text longformer mamba markuplm mbart megatron-bert ministral3 mistral mobilebert modernbert
    modernbert-decoder molmo2_text moshi mpt muse_glimmer_text mvp nanochat nomic_bert nystromformer olmo olmo2
    olmo3 openai-gpt openai_privacy_filter opt persimmon phi phi3 plbart pocket_tts qwen2 qwen3 qwen3_vl_text
    rembert roberta roberta-prelayernorm roformer sam3_lite_text_text_model seed_oss smollm3 splinter squeezebert
    stablelm starcoder2 tapas tipsv2_text_model ultrabert vaultgemma visual_bert xlm xlm-roberta xlm-roberta-xl
    xlnet yoso
"""
OF_IMAGES = """
    aimv2_vision_model beit chinese_clip_vision_model clip_vision_model data2vec-vision deit dinov2
    dinov2_with_registers dinov3_vit dpt idefics3_vision ijepa internvl_vision mlcd mlcd_vision_model mobilenet_v2
    pixio pixtral qianfan_ocr_vision sam3_vit_model sam_hq_vision_model sam_vision_model segformer
    siglip_vision_model smolvlm_vision tipsv2_vision_model vit vit_mae vit_msn vitdet yolos
"""
SIZES = {
    "attention_window": 4, "conv_kernel": 4, "d_ff": 48, "d_kv": 8, "d_model": 32, "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48, "decoder_layers": 2, "decoder_num_heads": 4, "dim": 32, "emb_dim": 32, "embed_dim": 32,
    "embedding_size": 32, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "encoder_hidden_dim": 32,
    "encoder_layers": 2, "ffn_dim": 48, "head_dim": 8, "hidden_dim": 48, "hidden_size": 32, "image_size": 32,
    "intermediate_size": 48, "kv_lora_rank": 16, "max_position_embeddings": 64, "moe_intermediate_size": 24,
    "moe_k": 2, "moe_num_experts": 4, "n_embd": 32, "n_group": 1, "n_head": 4, "n_heads": 4, "n_inner": 48,
    "n_layer": 2, "n_layers": 2, "n_positions": 64, "n_routed_experts": 4, "num_attention_groups": 1,
    "num_attention_heads": 4, "num_channels": 3, "num_decoder_layers": 2, "num_experts": 4, "num_experts_per_tok":
    2, "num_hash_buckets": 8, "num_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_layers": 2,
    "num_local_experts": 4, "patch_size": 8, "q_lora_rank": 16, "qk_head_dim": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "relative_attention_num_buckets": 8, "shared_expert_intermediate_size": 24,
    "sliding_window": 8, "state_size": 8, "time_step_rank": 4, "topk_group": 1, "v_head_dim": 8, "vocab_size": 97,
    "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
"""Small values of options that are whole numbers."""


def made(kind: str) -> torch.nn.Module:
    """A small model of this kind."""
    config = transformers.AutoConfig.for_model(kind)
    for name, size in SIZES.items():
        with contextlib.suppress(AttributeError, NotImplementedError):  # options that follow from others
            if type(getattr(config, name, None)) is int:
                setattr(config, name, size)
    model: torch.nn.Module = transformers.AutoModel.from_config(config)
    return model


def entries() -> Iterator[Entry]:
    """A model of each kind, with 12 tokens or an image of 32 x 32."""
    for kind in OF_TOKENS.split():
        yield Entry(f"transformers {kind}", partial(made, kind), ((2, 12),), (1,), below=97)
    for kind in OF_IMAGES.split():
        yield Entry(f"transformers {kind}", partial(made, kind), ((2, 3, 32, 32),))
