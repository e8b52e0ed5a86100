"""Continued pre-training: Qwen3 and Gemma 3, whose own training is not published, and LLM2Vec."""
import dataclasses
import functools

from plm_jax.architectures.decoder import DecoderConfig
from plm_jax.config.run import DataConfig, PretrainRun
from plm_jax.errors import ConfigError
from plm_jax.loading.loaded_model import read_model_config
from plm_jax.models import gemma3, qwen3
from plm_jax.models import llama as llamas
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.mntp import MaskedNextToken
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes import llama
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, take_model
from plm_jax.recipes.sentence_vectors import LLM2VEC_ADAPTER

QWEN3_DESCRIPTION = """\
Continued pre-training of Qwen3 (Yang et al. 2025, arXiv:2505.09388).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=qwen3_0b6 \\
        --tokenizer=Qwen/Qwen3-0.6B-Base
    python -m plm_jax train qwen3_0b6 --warm-start=Qwen/Qwen3-0.6B-Base \\
        --data.path=gs://BUCKET/records                                   # 16 TPU v5e chips
    python -m plm_jax train qwen3_0b6 --scale=laptop                      # 2 CPU cores: 40 minutes
    python -m plm_jax train qwen3_0b6 --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train qwen3_0b6 --scale=test                        # seconds

A LLaMA with QK-norm and tied embeddings. **The settings of its training are not published**: the
paper has neither learning rates nor batch sizes. These recipes are for continued pre-training from
a released checkpoint (--warm-start), with settings of ours: 10.5 billion tokens in batches of one
million at sequence length 4,096, a peak learning rate of 2e-5, a warmup of 100 updates, a cosine to
a tenth, betas 0.9 and 0.95 and a weight decay of 0.1. Without --warm-start they train from scratch,
which at these learning rates is of no use at paper scale.

Documents in one sequence do not attend to each other. They keep their blank lines, indentation and
line ends (--data.prepare.sentences=none). A file of plain text is one document;
--data.prepare.documents=blank-lines divides it.
"""
# The loss has the logits of a sixteenth of the vocabulary at a time.
ContinuedSize = functools.partial(
    RecipeSize, peak=2e-5, steps=10_000, length=4096, batch=256, accumulate=16, pod='v5e:4x4')
# Parameters of transformers' Qwen3ForCausalLM; published as 0.6B.
QWEN3_SIZES = {
    '0b6': ContinuedSize(model=qwen3.qwen3_0_6b, parameters=596_049_920)}
BYTES = TextConfig(kind='byte-bpe', layout='gpt2', lowercase=False, sentences='none')


def make_run(family: str, text: TextConfig, row: RecipeSize) -> PretrainRun:
  """Build a run that continues the pre-training of a model."""
  optim = AdamW(
      peak=row.peak, warmup=100, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family=family, objective=CausalLM(loss_blocks=16), optim=optim,
      model=row.make_model(dropout=0.0, attention_dropout=0.0),
      data=DataConfig(prepare=text, assembly='packed'), train=row.make_train_config())


QWEN3 = RecipeFamily(
    'qwen3', QWEN3_DESCRIPTION, QWEN3_SIZES, functools.partial(make_run, 'qwen3', BYTES))


GEMMA3_DESCRIPTION = """\
Continued pre-training of Gemma 3 (Gemma Team 2025, arXiv:2503.19786).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gemma3_270m \\
        --tokenizer=google/gemma-3-270m
    python -m plm_jax train gemma3_270m --warm-start=google/gemma-3-270m \\
        --data.path=gs://BUCKET/records                                   # 16 TPU v5e chips
    python -m plm_jax train gemma3_270m --scale=laptop                    # 2 CPU cores: 40 minutes
    python -m plm_jax train gemma3_270m --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gemma3_270m --scale=test                      # seconds

The text models of Gemma 3: five layers of six have a sliding window of 512 tokens, and the
vocabulary has 262,144 tokens, more than half of the parameters of 270m. **The settings of its
training are not published**, and it is distilled from a larger model. These recipes are for
continued pre-training from a released checkpoint (--warm-start), with the settings of ours that
`qwen3_0b6` has: 10.5 billion tokens in batches of one million at sequence length 4,096, a peak
learning rate of 2e-5, a warmup of 100 updates and a cosine to a tenth. Without --warm-start they
train from scratch, which at these learning rates is of no use at paper scale.

Documents in one sequence do not attend to each other. They keep their blank lines, indentation and
line ends (--data.prepare.sentences=none). A file of plain text is one document;
--data.prepare.documents=blank-lines divides it.
"""
# Parameters of transformers' Gemma3ForCausalLM; published as 270M.
GEMMA3_SIZES = {
    '270m': ContinuedSize(model=gemma3.gemma3_270m, parameters=268_098_176)}
GEMMA3 = RecipeFamily(
    'gemma3', GEMMA3_DESCRIPTION, GEMMA3_SIZES,
    functools.partial(make_run, 'gemma3_text', llama.TEXT))


LLM2VEC_DESCRIPTION = """\
LLM2Vec's first step, masked next-token prediction (BehnamGhader et al. 2024, arXiv:2404.05961).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=llm2vec \\
        --tokenizer=princeton-nlp/Sheared-LLaMA-1.3B
    python -m plm_jax train llm2vec --warm-start=princeton-nlp/Sheared-LLaMA-1.3B \\
        --data.path=gs://BUCKET/records                                   # 8 TPU v5e chips
    python -m plm_jax train llm2vec --warm-start=RUN --scale=laptop       # 2 CPU cores: minutes
    python -m plm_jax train llm2vec --scale=test                          # seconds

A decoder becomes an encoder: its attention is made bidirectional (--model.causal=False), and it
learns to predict each masked token from the position before it. --warm-start is a decoder of any
family: a run, such as RUN of `qwen3_0b6 --scale=laptop`, or a checkpoint. The model has its
architecture and tokenizer. Without --warm-start, the adapters belong to a Sheared-LLaMA with random
weights, which is only for tests. The second step is SimCSE, on text with one sentence per line;
MNTP is the run of the first step:

    python -m plm_jax finetune --task=llm2vec --init=MNTP --train=sentences.txt --dev=stsb_dev.tsv

The settings are in train_configs/mntp/Sheared-Llama.json of McGill-NLP/llm2vec@312adcfb (lines 3 to
20): 1,000 updates on Wikitext-103, 32 sequences of 512 tokens, 20% of the tokens masked (80% by
`_`, 10% by a random token), LoRA of rank 16. LoRA has alpha 32 and a dropout of 0.05 on all
projections (experiments/run_mntp.py, lines 102 to 110 and 711 to 716), and `_` is the mask token of
decoders (line 676). AdamW with peak 5e-5, no warmup and no weight decay has the defaults of
transformers' Trainer. There, the learning rate falls by 4% in 1,000 updates; here, it is constant.
The files of LLaMA 2 and 3 have the same values. The file of Mistral masks 80% of the tokens, all by
`_`.

Differences: documents in one sequence do not attend to each other, the number of masked tokens of
a sequence is not random, and the start token is the only special token in a sequence.
"""
# Parameters of princeton-nlp/Sheared-LLaMA-1.3B: transformers' LlamaForCausalLM.
LLM2VEC_SIZES = {
    '1b3': RecipeSize(
        name='llm2vec', model=llamas.sheared_llama_1_3b, parameters=1_345_423_360, peak=5e-5,
        steps=1000, length=512, batch=32, remat='dots', pod='v5e:2x4')}


def make_llm2vec_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  model = dataclasses.replace(
      row.make_model(dropout=0.0, attention_dropout=0.0), causal=False)
  optim = AdamW(
      peak=row.peak, warmup=0, schedule='constant', eps=1e-8, bias_correction=True,
      weight_decay=0.0)
  objective = MaskedNextToken(
      causal=0.0, mask_rate=0.2, final_mask_rate=None, lengths=(1.0,), mask_token='_')
  return PretrainRun(
      row.name, family='llama', objective=objective, optim=optim, model=model,
      data=DataConfig(prepare=llama.TEXT, assembly='packed'),
      tuning=TuningConfig(adapter=LLM2VEC_ADAPTER), train=row.make_train_config())


def start_from_decoder(run: PretrainRun, folder: str) -> PretrainRun:
  """Return a run of LLM2Vec with the model in a folder, with bidirectional attention.

  Raises:
    ConfigError: the folder has no decoder.
  """
  family, model = read_model_config(folder)
  if not isinstance(model, DecoderConfig) or model.kind != 'decoder':
    raise ConfigError(f'{folder} is a {family}: LLM2Vec starts from a decoder, such as a LLaMA')
  return take_model(run, family, model, {'causal': False})


LLM2VEC = RecipeFamily(
    'llm2vec', LLM2VEC_DESCRIPTION, LLM2VEC_SIZES, make_llm2vec_run, start_from_decoder)
