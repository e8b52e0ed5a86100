"""GPU code, tested on a CPU. The layers that a GPU computes otherwise give the same losses and
gradients, in float32. Every recipe is traced as on a GPU in bfloat16 with JAX's own checks of
cuDNN's attention; nothing is compiled there. benchmarks/gpu.py tests on a GPU whether cuDNN accepts
the kernels that JAX accepts."""
import dataclasses
import functools

from flax.linen import unbox
import jax
from jax._src.cudnn import fused_attention_stablehlo as checks
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import gpu as benchmark
from benchmarks.gpu import learner_of, text
from plm_jax import recipes
from plm_jax.inference.decoder_steps import DecoderSteps, EncoderDecoderSteps
from plm_jax.layers import norm
from plm_jax.layers.kernels import cpu, gpu
from plm_jax.objectives import window_shapes
from plm_jax.training.learner import make_learner, placeholder_vocab
from plm_jax.training.step import compute_gradient, init_state, total_loss

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
    if recipes.find_recipe(name).family != 'elmo':  # which has none
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
  vocab = placeholder_vocab(recipe)
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
  recipe = benchmark.in_bfloat16(recipe)
  learner, windows = benchmark.learner_of(recipe), benchmark.text(recipe, recipe.train.phases[0])
  batch = jax.eval_shape(lambda windows: learner.objective.corrupt(learner.key('corruption'),
                                                                   windows, learner.vocab), windows)
  params = unbox(jax.eval_shape(learner.model.init, learner.key('init'), batch))['params']
  jax.eval_shape(lambda params, batch: learner.model.apply({'params': params}, batch), params,
                 batch)
  assert any(call['is_causal'] for call in calls) == causal
  assert calls


def test_the_benchmark_reports_that_there_is_no_gpu(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['gpu'])
  benchmark.main()
  assert capsys.readouterr(
      ).out == f'There is no GPU here: JAX {jax.__version__} runs on cpu (cpu).\n'


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (number % 6 > 0))
    for number, name in enumerate(OTHERS)])
def test_every_recipe(name, on):
  """JAX raises for a kernel that it does not take."""
  assert 'next' not in traced(name, on((9, 0)))


@pytest.fixture
def on_gpu(monkeypatch):
  """on_gpu() makes later traces use the forms for a GPU, without its attention kernel."""
  def pretend():
    for module in (cpu, gpu):
      monkeypatch.setattr(module, 'target_platform', lambda: 'gpu')
    jax.clear_caches()
  yield pretend
  jax.clear_caches()


@pytest.mark.parametrize('name', [
    'bert_base', 'gpt2_small', *(pytest.param(name, marks=pytest.mark.slow)
                                 for name in ('modernbert_base', 't5_v1_1_base')),
    *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.release]) for name in (
        'albert_base', 'llama_7b', 'bart_base', 'xlnet_base', 'deberta_v3_small'))])
def test_gpu_forms_give_the_same_loss_and_gradient(name, on_gpu):
  recipe = recipes.find_recipe(name)('test')
  learner, windows = learner_of(recipe), text(
      recipe, dataclasses.replace(recipe.train.phases[0], batch=4))
  params = jax.jit(lambda: unbox(init_state(learner, windows)).params)()

  def find():
    def loss_and_gradient(params, windows):
      batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)
      grads, metrics = compute_gradient(learner, params, batch, learner.key('dropout'))
      return total_loss(learner.objective.terms, metrics), grads
    return jax.jit(loss_and_gradient)(params, windows)

  loss, grads = find()
  on_gpu()
  other, others = find()
  np.testing.assert_allclose(other, loss, rtol=1e-5)
  floor = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) / 100
  for path, ours in jax.tree.leaves_with_path(grads):
    theirs = functools.reduce(lambda tree, key: tree[key.key], path, others)
    assert jnp.abs(ours - theirs).max() <= 1e-4 * max(jnp.abs(ours).max(), floor), path


def test_layers_are_unrolled_and_initialized_in_a_loop(on_gpu):
  recipe = recipes.find_recipe('gpt2_small')('test')
  learner, windows = learner_of(recipe), text(
      recipe, dataclasses.replace(recipe.train.phases[0], batch=2))
  batch = learner.objective.corrupt(learner.key('corruption'), windows, learner.vocab)

  def scans(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count(' unroll=1\n')

  params = unbox(learner.model.init(learner.key('init'), batch))['params']
  layers = scans(lambda p: learner.model.apply({'params': p}, batch), params)
  start = scans(lambda: learner.model.init(learner.key('init'), batch))
  on_gpu()
  assert gpu.unrolls(48) and not gpu.unrolls(49)
  assert scans(lambda p: learner.model.apply({'params': p}, batch), params) == layers - 1
  assert scans(lambda: learner.model.init(learner.key('init'), batch)) == start


@pytest.mark.parametrize('kind', ['layer', 'layer_scale', 'plain', 'rms'])
def test_gradients_of_norms(kind):
  x, weight = jax.random.normal(jax.random.key(0), (2, 3, 5, 8))
  scale, bias = jax.random.normal(jax.random.key(1), (2, 8))
  if kind in ('plain', 'layer_scale'):
    bias = jnp.zeros(())
  if kind == 'plain':
    scale = jnp.ones(())
  arguments = (x, scale) if kind == 'rms' else (x, scale, bias)

  def total(form, *arguments):
    x, scale, bias = (*arguments, None)[:3]
    return (form(x, scale, bias, 1e-5) * weight).sum()

  places = range(len(arguments))
  ours, theirs = (jax.grad(functools.partial(total, form), places)(*arguments)
                  for form in (norm.normalize, gpu.normalize))
  for one, other in zip(ours, theirs, strict=True):
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(('letters', 'shape'), [('bld,dv->blv', (8, 67)), ('bld,vd->blv', (67, 8))])
def test_vocabulary_is_padded_and_gradients_are_products_in_the_dtype_of_the_operands(
    letters, shape):
  h, matrix = jax.random.normal(jax.random.key(0),
                                (2, 3, 8)), jax.random.normal(jax.random.key(1), shape)
  h, matrix = h.astype(jnp.bfloat16), matrix.astype(jnp.bfloat16)
  logits = gpu.vocabulary_product(letters, h, matrix)
  assert logits.shape == (2, 3, 67) and logits.dtype == jnp.float32
  np.testing.assert_allclose(logits, jnp.einsum(letters, h, matrix,
                                                preferred_element_type=jnp.float32), rtol=1e-6)

  gradient = jax.make_jaxpr(
      jax.grad(lambda h, m: (gpu.vocabulary_product(letters, h, m) ** 2).sum(),
                                     (0, 1)))(h, matrix)
  lines = [line.strip() for line in str(gradient).splitlines()]
  # _: not used
  products = [line for line in lines if 'dot_general' in line and not line.startswith('_:')]
  assert len(products) == 3
  assert all(':bf16' in line for line in products[1:])
  assert '128' in products[0] and ':f32' in products[0]


def test_loss_statistics_and_their_gradient():
  logits, labels = jax.random.normal(jax.random.key(0),
                                     (2, 3, 7)), jnp.array([[0, 6, 2], [1, 1, 5]])

  def plain(logits):
    label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1), label, jax.lax.stop_gradient(logits.max(-1))

  def total(stats, logits):
    log_total, label, largest = stats(logits)
    return (2 * log_total - 3 * label + largest).sum()

  ours = functools.partial(gpu.softmax_stats, labels=labels)
  for one, other in zip(ours(logits), plain(logits), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
  np.testing.assert_allclose(
      jax.grad(functools.partial(total, ours))(logits),
      jax.grad(functools.partial(total, plain))(logits), atol=1e-6)
