"""Every recipe, traced as on a GPU in bfloat16 with JAX's own checks of cuDNN's attention; no GPU
is needed.

Nothing is compiled. benchmarks/gpu.py tests on a GPU whether cuDNN accepts the kernels that JAX
accepts.
"""
import functools

from flax.linen import unbox
import jax
from jax._src.cudnn import fused_attention_stablehlo as checks
import jax.numpy as jnp
import pytest

from benchmarks import gpu
from plm_jax import recipes
from plm_jax.inference.decoder_steps import DecoderSteps
from plm_jax.inference.encoder_decoder_steps import EncoderDecoderSteps
from plm_jax.objectives import window_shapes
from plm_jax.tokenizers.contract import Vocab
from plm_jax.training.learner import make_learner

# Where the kernel is used on a Hopper: in the training step, in evaluation, in reading a prompt.
FAMILIES = {
    'bert_base': 'eval', 'albert_base': 'train eval', 'distilbert_base': 'train eval',
    'deberta_base': '',
    'electra_base': 'eval', 'xlnet_base': '', 'gpt2_small': 'eval prompt',
    'llama_7b': 'train eval prompt',
    'palm_8b': 'train eval prompt', 'glm_base': 'eval prompt', 't5_v1_1_base': 'train eval prompt',
    'bart_base': 'eval prompt', 'transformer_base': 'train eval prompt'}
OLDER = [('palm_8b', (8, 0), ''), ('albert_base', (7, 5), '')]


def others() -> list[str]:
  """Recipes with a kind of attention that no earlier one has. Depth, width, vocabulary, text
  pairs and noise do not matter to the kernel; sizes of heads, lengths, masks, biases and dropout
  do."""
  def kind(name):
    recipe = recipes.find_recipe(name)('paper')
    block = recipe.model.block
    return (type(recipe.model), type(recipe.objective), recipe.train.phases[0].length,
            block.attention, block.dropout,
            block.head_size or block.width // block.heads,
            block.heads // (block.kv_heads or block.heads))
  first: dict[tuple, str] = {}
  for name in [*FAMILIES, *recipes.all_recipes()]:
    if recipes.find_recipe(name)('paper').family != 'elmo':  # which has none
      first.setdefault(kind(name), name)
  return [name for name in first.values() if name not in FAMILIES]


OTHERS = others()


@pytest.fixture
def on(monkeypatch):
  """on(capability) pretends to be on a GPU of it -> the calls of its fused attention, filled in as
  they are traced."""
  def pretend(capability):
    calls, attention = [], jax.nn.dot_product_attention
    def recorded(*args, **kwargs):
      calls.append(kwargs)
      return attention(*args, **kwargs)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    monkeypatch.setattr(jax.nn, 'dot_product_attention', recorded)
    monkeypatch.setattr(checks, 'check_cudnn_version', lambda: 91400)
    monkeypatch.setattr(checks, 'is_cuda_compute_capability_equal', lambda _: False)
    monkeypatch.setattr(
        checks, 'check_compute_capability',
        lambda need: capability >= tuple(map(int, need.split('.'))))
    return calls
  return pretend


def traced(name: str, calls: list) -> str:
  """Traces all that a recipe's model is used for -> where fused attention was, but for
  initialisation."""
  recipe = recipes.find_recipe(name)('paper')
  assert recipe.model.block.dtype == 'bfloat16'
  vocab = Vocab(recipe.model.vocab, max(recipe.model.padding, 0), unk=1, cls=2, sep=3, mask=4,
                bos=5, eos=6, sop=7,
                eop=8, gmask=9, smask=10, sentinel=recipe.model.vocab - 1, sentinels=1000,
                language=11)
  learner, key = make_learner(recipe, vocab), jax.eval_shape(jax.random.key, 0)
  windows = window_shapes(2, recipe.objective.text_length(recipe.train.phases[0].length))
  used = []
  def trace(place, function, *args):
    calls.clear()
    shapes = jax.eval_shape(function, *args)
    used.extend([place] * bool(calls))
    return shapes
  batch = jax.eval_shape(lambda key, windows: learner.objective.corrupt(key, windows, vocab), key,
                         windows)
  params = unbox(jax.eval_shape(learner.model.init, key, batch))['params']
  def loss(params, batch, key):
    outputs = learner.model.apply({'params': params}, batch, jnp.arange(2), rngs={'dropout': key})
    losses = learner.objective.loss(outputs, batch)
    return sum(losses[name][0] for name in learner.objective.terms)
  trace('train', jax.value_and_grad(loss), params, batch, key)
  trace('eval', learner.model.apply, {'params': params}, batch)
  if steps := steps_of(recipe):
    row = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    prompt = {name: row for name in ('tokens', 'segments', 'source', 'source_segments')}
    params = jax.eval_shape(steps.load_params, params)
    _, cache = trace('prompt', functools.partial(steps.prefill, slots=24), params, prompt)
    trace('next', steps.decode_step, params, jax.ShapeDtypeStruct((2,), jnp.int32), cache)
  return ' '.join(used)


def steps_of(recipe):
  """How the recipe's model writes text; None: it does not."""
  head = recipe.objective.heads(recipe.model).get('lm')
  if head is None:
    return None
  return (EncoderDecoderSteps if hasattr(recipe.model, 'decoder_block')
          else DecoderSteps)(recipe.model, head)


@pytest.mark.parametrize(('name', 'capability', 'used'), [
    *(pytest.param(name, (9, 0), used, marks=[pytest.mark.slow, pytest.mark.release]
                   * (name not in ('bert_base', 'gpt2_small')))
      for name, used in FAMILIES.items()), *OLDER])
def test_a_recipe_of_each_family(name, capability, used, on):
  assert traced(name, on(capability)) == used


@pytest.mark.parametrize(('name', 'causal'),
                         [('gpt2_small', True), ('transformer_base', True), ('bert_base', False)])
def test_the_kernel_skips_later_keys_of_decoders(name, causal, on):
  recipe, calls = recipes.find_recipe(name)('test'), on((9, 0))
  recipe = gpu.in_bfloat16(recipe)
  learner, windows = gpu.learner_of(recipe), gpu.text(recipe, recipe.train.phases[0])
  batch = jax.eval_shape(lambda windows: learner.objective.corrupt(learner.key('corruption'),
                                                                   windows, learner.vocab), windows)
  params = unbox(jax.eval_shape(learner.model.init, learner.key('init'), batch))['params']
  jax.eval_shape(lambda params, batch: learner.model.apply({'params': params}, batch), params,
                 batch)
  assert any(call['is_causal'] for call in calls) == causal
  assert calls


def test_the_benchmark_reports_that_there_is_no_gpu(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['gpu'])
  gpu.main()
  assert capsys.readouterr(
      ).out == f'There is no GPU here: JAX {jax.__version__} runs on cpu (cpu).\n'


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (number % 6 > 0))
    for number, name in enumerate(OTHERS)])
def test_every_recipe(name, on):
  """JAX raises for a kernel that it does not take."""
  assert 'next' not in traced(name, on((9, 0)))
