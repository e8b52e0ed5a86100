"""T5Gemma: Gemma 2 adapted to an encoder-decoder."""
import dataclasses
import functools
from typing import Any

from plm_jax import validation
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.models import t5gemma
from plm_jax.objectives.span_corruption import MixtureOfDenoisers, PrefixLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.recipes import llama
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize
from plm_jax.sharding import MeshConfig

DESCRIPTION = """\
Adaptation of Gemma 2 to an encoder-decoder: T5Gemma (Zhang et al. 2025, arXiv:2504.06225).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=t5gemma_2b_2b \\
        --tokenizer=google/gemma-2-2b
    python -m plm_jax train t5gemma_2b_2b --warm-start=google/gemma-2-2b \\
        --tuning.decoder=google/gemma-2-2b --data.path=gs://BUCKET/records  # 64 TPU v5e chips
    python -m plm_jax train t5gemma_9b_2b_cross --warm-start=google/gemma-2-9b \\
        --tuning.decoder=google/gemma-2-2b --data.path=gs://BUCKET/records
    python -m plm_jax train t5gemma_9b_2b --warm-start=runs/t5gemma_9b_2b_cross \\
        --data.path=gs://BUCKET/records
    python -m plm_jax train llama_7b --scale=laptop
    python -m plm_jax train t5gemma_2b_2b --scale=laptop --warm-start=runs/llama_7b-laptop \\
        --tuning.decoder=runs/llama_7b-laptop                             # 2 CPU cores
    python -m plm_jax train t5gemma_2b_2b --scale=test                    # seconds

The encoder starts from the decoder in --warm-start, without its causal mask. The decoder starts
from the one in --tuning.decoder, and its cross-attention from its self-attention (section 3.1). The
new model has the sizes of these decoders. GPT, GPT-2, GPT-3, GPT-Neo, LLaMA, SmolLM2, Qwen3, Gemma
2 and Gemma 3 can be adapted. If encoder and decoder differ in width, as in 9B-2B, cross-attention
is new. The paper then trains cross-attention alone at first: t5gemma_9b_2b_cross does this for
1,000 steps, and t5gemma_9b_2b continues with all parameters.

The objective is prefix language modeling: the encoder reads the first half of a text, and the
decoder predicts the second half. **Learning rate, batch size and number of steps are settings of
ours**, mostly as in the other recipes that continue the training of released models (`qwen3_0b6`).
The paper also distills from the decoder; this recipe does not. The paper's other objective, UL2 (as
in ul2_20b), needs sentinel tokens, which Gemma's tokenizer does not have.
"""
# Parameters of transformers' T5GemmaForConditionalGeneration; 9b_2b also those of the released
# checkpoint.
Size = functools.partial(
    RecipeSize, peak=2e-5, steps=10_000, length=4096, batch=256, accumulate=4, remat='full',
    pod='v5e:8x8', mesh=MeshConfig(fsdp=64))
HALVES: dict[str, Any] = dict(mesh=MeshConfig(fsdp=32, tensor=2), accumulate=8)
"""two devices share the heads of a row: the attention of 9B does not fit one"""
SIZES = {
    '2b_2b': Size(model=t5gemma.t5gemma_2b_2b, parameters=5_596_853_760),
    '9b_2b_cross': Size(
        model=t5gemma.t5gemma_9b_2b, parameters=12_292_375_296, peak=1e-4, steps=1000, **HALVES),
    '9b_2b': Size(model=t5gemma.t5gemma_9b_2b, parameters=12_292_375_296, **HALVES)}
CROSS_ATTENTION = 'backbone/decoder/stack/layers/block/cross*'


def make_run(row: RecipeSize) -> PretrainRun:
  """Build the run of a size, or of the warmup of its cross-attention."""
  optim = AdamW(
      peak=row.peak, warmup=100, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  if row.name.endswith('_cross'):
    optim = dataclasses.replace(optim, schedule='constant', only=(CROSS_ATTENTION,))
  model = validation.with_paths(
      row.make_model(dropout=0.0, attention_dropout=0.0), {'decoder.remat': row.remat})
  return PretrainRun(
      row.name, family='t5gemma', optim=optim, model=model,
      objective=MixtureOfDenoisers((PrefixLM(fixed=True),), loss_blocks=16),
      data=DataConfig(prepare=llama.TEXT, assembly='packed'), train=row.make_train_config())


T5GEMMA = RecipeFamily('t5gemma', DESCRIPTION, SIZES, make_run)
