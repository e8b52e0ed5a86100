"""GPT, GPT-2 and GPT-3."""
import dataclasses
import functools

from plm_jax.config.run import DataConfig, PretrainRun, TrainConfig
from plm_jax.models import gpt, gpt2
from plm_jax.objectives.clm import CausalLM
from plm_jax.optim.optimizers import AdamW
from plm_jax.preparation.prepare_config import TextConfig
from plm_jax.recipes import llama
from plm_jax.recipes.recipe_size import RecipeFamily, RecipeSize, batch_size_ramp
from plm_jax.sharding import MeshConfig

GPT_DESCRIPTION = """\
GPT, as published (Radford et al. 2018, section 4.1).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt_base
    python -m plm_jax train gpt_base --data.path=gs://BUCKET/records      # 16 TPU v3 chips, or more
    python -m plm_jax train gpt_base --scale=laptop                       # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt_base --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt_base --scale=test                         # seconds

A causal language model with 12 layers of width 768 and post-norm, on BooksCorpus: 100 epochs with
batch size 64 at sequence length 512. For its billion tokens these are three million steps. The
paper's text continues from sequence to sequence without a separator. Here a sequence begins with
_start_, and _delimiter_ ends a document. The weight decay of 0.01 is decoupled from Adam's
gradient, as in the released optimizer.

The published model normalized its text: spaCy divided it into words, and these became lower case.
Here the tokenizer ignores white space and accents, too, so blank lines and indentation are left
out.
"""
GPT_SIZES = {
    # Parameters of transformers' OpenAIGPTLMHeadModel.
    'base': RecipeSize(
        model=gpt.base, parameters=116_534_784, peak=2.5e-4, steps=3_000_000, length=512, batch=64,
        pod='v3:4x4', mesh=MeshConfig(fsdp=32))}


def make_gpt_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  # Warmup over the first 2,000 updates, and a cosine to 0, as in the released code.
  optim = AdamW(
      peak=row.peak, warmup=2000, schedule='gpt1', eps=1e-8, bias_correction=True,
      weight_decay=0.01)
  return PretrainRun(
      row.name, family='openai-gpt', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=CausalLM(isolated=False),
      data=DataConfig(prepare=TextConfig(kind='word-bpe'), assembly='packed'), optim=optim,
      train=row.make_train_config())


GPT = RecipeFamily('gpt', GPT_DESCRIPTION, GPT_SIZES, make_gpt_run)


GPT2_DESCRIPTION = """\
GPT-2 (Radford et al. 2019).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt2_small
    python -m plm_jax train gpt2_small --data.path=gs://BUCKET/records    # 64 TPU v3 chips, or more
    python -m plm_jax train gpt2_small --scale=laptop                     # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt2_small --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt2_small --scale=test                       # seconds

A causal language model with batch size 512 and sequence length 1,024 on WebText, 8 million
documents or 40 GB. Tokens attend to everything before them in the sequence, across documents. The
paper gives neither the number of steps nor the learning rate, which was tuned for each size. The
peak learning rate, warmup, cosine and other Adam settings are those of GPT-3 of the same size
(Brown et al. 2020, table 2.1 and appendix B), for 262 billion tokens.

chinese is small on Chinese text for 100,000 steps, with a SentencePiece vocabulary trained on that
text, which has LLaMA's special tokens and bytes. Documents in one sequence do not attend to each
other. For a text with one paragraph per line and an empty line between documents:

    python -m plm_jax train gpt2_chinese --scale=laptop --data.path=zhwiki.txt \\
        --data.prepare.documents=blank-lines
    python -m plm_jax train gpt2_chinese --scale=test --data.path=zhwiki.txt --model.vocab=8000 \\
        --data.prepare.documents=blank-lines

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it. Every
character has tokens: byte-level BPE and LLaMA's SentencePiece give the text back unchanged.
"""


GPT2Size = functools.partial(RecipeSize, steps=500_000, length=1024, batch=512)
# Parameters of transformers' GPT2LMHeadModel. Peak learning rates: Brown et al. 2020, table 2.1.
GPT2_SIZES = {
    'small': GPT2Size(model=gpt2.small, parameters=124_439_808, peak=6e-4, pod='v3:8x8'),
    'medium': GPT2Size(model=gpt2.medium, parameters=354_823_168, peak=3e-4, pod='v3:16x16'),
    'large': GPT2Size(
        model=gpt2.large, parameters=774_030_080, peak=2.5e-4, accumulate=2, pod='v3:8x16'),
    'xl': GPT2Size(model=gpt2.xl, parameters=1_557_611_200, peak=2e-4, accumulate=2, pod='v3:8x16'),
    'chinese': GPT2Size(
        # 50,000 tokens, and 48 more such that devices can share the embeddings.
        model=lambda dtype: dataclasses.replace(gpt2.small(dtype), vocab=50_048),
        parameters=124_279_296, peak=6e-4, steps=100_000, pod='v3:8x8', laptop_vocab=8000)}


def make_gpt2_run(row: RecipeSize) -> PretrainRun:
  """Build the published run of a size."""
  text = TextConfig(kind='byte-bpe', layout='gpt2', sentences='none')
  chinese = row.name == 'gpt2_chinese'
  if chinese:
    text = llama.TEXT
  # The warmup of 375 million tokens is 715 updates with batch size 512 at sequence length 1,024.
  optim = AdamW(
      peak=row.peak, warmup=715, schedule='cosine', floor=0.1, b2=0.95, eps=1e-8,
      bias_correction=True, weight_decay=0.1)
  return PretrainRun(
      row.name, family='gpt2', model=row.make_model(dropout=0.1, attention_dropout=0.1),
      objective=CausalLM(isolated=chinese),
      data=DataConfig(prepare=text, assembly='packed'), optim=optim,
      train=row.make_train_config())


GPT2 = RecipeFamily('gpt2', GPT2_DESCRIPTION, GPT2_SIZES, make_gpt2_run)


GPT3_DESCRIPTION = """\
GPT-3 (Brown et al. 2020, section 2.3, table 2.1 and appendix B).

    python -m plm_jax prepare TEXT gs://BUCKET/records --for=gpt3_13b
    python -m plm_jax train gpt3_small --data.path=gs://BUCKET/records     # 64 TPU v4 chips
    python -m plm_jax train gpt3_13b --data.path=gs://BUCKET/records       # 128 TPU v5p chips
    python -m plm_jax train gpt3_small --scale=laptop                      # 2 CPU cores: 40 minutes
    python -m plm_jax train gpt3_small --scale=laptop --train.phases.0.steps=700  # 5 minutes
    python -m plm_jax train gpt3_small --scale=test                        # seconds

A causal language model in which every second layer has local attention with a sliding window of 256
tokens. It trains on 300 billion tokens at sequence length 2,048. Sequences continue across
documents, and tokens attend to everything before them.

The batch size grows over the first 4 to 12 billion tokens, depending on the size. The paper does
not state which model has which number. The first batches have 131 thousand tokens or more, as many
as devices share, where the paper has 32 thousand. The learning rate schedule also counts tokens: it
warms up over 375 million and falls along a cosine to a tenth over 260 billion. There is no dropout,
because the paper names none.

Documents keep their blank lines, indentation and line ends (--data.prepare.sentences=none). A file
of plain text is one document; --data.prepare.documents=blank-lines divides it.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPT3Size(RecipeSize):
  """A size with its batch size ramp."""

  length: int = 2048
  first_batch: int = 64
  """initial batch size"""
  ramp_tokens: int = 4_000_000_000
  """tokens over which the batch size grows"""
  remat: str = 'dots'


# Parameters of table D.1, in millions: 125, 356, 760, 1,320, 2,650, 6,660, 12,850, 174,604. Peak
# learning rates and batch sizes (0.5, 0.5, 0.5, 1, 1, 2, 2 and 3.2 million tokens): table 2.1.
GPT3_SIZES = {
    'small': GPT3Size(
        model=gpt2.gpt3_small, parameters=125_226_240, peak=6e-4, batch=256, remat='none',
        pod='v4:4x4x4'),
    'medium': GPT3Size(
        model=gpt2.gpt3_medium, parameters=355_871_744, peak=3e-4, batch=256, pod='v5p:4x4x4'),
    'large': GPT3Size(
        model=gpt2.gpt3_large, parameters=760_300_032, peak=2.5e-4, batch=256, pod='v4:4x4x4'),
    'xl': GPT3Size(
        model=gpt2.gpt3_xl, parameters=1_315_723_264, peak=2e-4, batch=512, pod='v4:4x4x4'),
    '2b7': GPT3Size(
        model=gpt2.gpt3_2_7b, parameters=2_651_553_280, peak=1.6e-4, batch=512,
        ramp_tokens=6_000_000_000, remat='full', pod='v4:4x4x4', mesh=MeshConfig(fsdp=64)),
    '6b7': GPT3Size(
        model=gpt2.gpt3_6_7b, parameters=6_658_404_352, peak=1.2e-4, batch=1024, first_batch=128,
        ramp_tokens=8_000_000_000, accumulate=2, pod='v5p:4x4x4', mesh=MeshConfig(fsdp=64)),
    '13b': GPT3Size(
        model=gpt2.gpt3_13b, parameters=12_853_386_240, peak=1e-4, batch=1024, first_batch=128,
        ramp_tokens=8_000_000_000, pod='v5p:4x4x8', mesh=MeshConfig(fsdp=64)),
    '175b': GPT3Size(
        model=gpt2.gpt3_175b, parameters=174_604_259_328, peak=6e-5, batch=1536, first_batch=192,
        ramp_tokens=12_000_000_000, remat='full', pod='v4:8x12x16',
        mesh=MeshConfig(fsdp=192, tensor=8))}


def make_gpt3_run(row: GPT3Size) -> PretrainRun:
  """Build the published run of a size."""
  optim = AdamW(
      peak=row.peak, clock='tokens', warmup=375_000_000, horizon=260_000_000_000, schedule='cosine',
      floor=0.1, b2=0.95, eps=1e-8, bias_correction=True, weight_decay=0.1)
  phases = batch_size_ramp(300_000_000_000, row.length, row.batch, row.first_batch, row.ramp_tokens)
  text = TextConfig(kind='byte-bpe', layout='gpt2', sentences='none')
  return PretrainRun(
      row.name, family='gpt3', model=row.make_model(dropout=0.0, attention_dropout=0.0),
      objective=CausalLM(isolated=False), data=DataConfig(prepare=text, assembly='packed'),
      optim=optim, train=TrainConfig(phases=phases, accumulate=row.accumulate))


GPT3 = RecipeFamily('gpt3', GPT3_DESCRIPTION, GPT3_SIZES, make_gpt3_run)
