"""T5, mT5, BART and the Transformer: sizes, and files of transformers both ways."""
import dataclasses
import json

from flax.linen import unbox
import jax
import numpy as np
import pytest
import tiny

from plm_jax import conversion
from plm_jax.architectures.encoder_decoder import EncoderDecoderConfig
from plm_jax.conversion import ConvertError
from plm_jax.layers.dense import count_parameters
from plm_jax.layers.heads import ModelWithHeads
from plm_jax.layers.stack import StackConfig
from plm_jax.models import bart, families, t5, transformer

SIZES = {
    't5': {
        t5.small: 60_506_624, t5.base: 222_903_552, t5.large: 737_668_096, t5.t5_3b: 2_851_598_336,
        t5.t5_11b: 11_307_321_344, t5.v1_1_small: 76_961_152, t5.v1_1_base: 247_577_856,
        t5.v1_1_large: 783_150_080,
        t5.v1_1_xl: 2_849_757_184, t5.v1_1_xxl: 11_135_332_352, t5.ul2_20b: 19_459_613_696,
        t5.byt5_small: 299_637_760, t5.byt5_xxl: 12_906_899_328},
    'mt5': {t5.mt5_small: 300_176_768, t5.mt5_base: 582_401_280, t5.mt5_large: 1_229_581_312,
            t5.mt5_xxl: 12_921_057_280},
    'umt5': {
        t5.umt5_small: 306_601_984, t5.umt5_base: 592_043_520, t5.umt5_xl: 3_768_356_864,
        t5.umt5_xxl: 12_972_531_712},
    'bart': {bart.base: 139_420_416, bart.large: 406_291_456},
    'mbart': {bart.mbart_large: 610_851_840},
}


def shapes_of(family, config):
  kind = conversion.get_family(family)
  model = ModelWithHeads(kind.backbone(config), {'lm': kind.heads['lm'].make(config, 2)})
  return unbox(families.boxed_parameter_shapes(model, {}))


@pytest.mark.slow
@pytest.mark.parametrize(('family', 'size', 'number'), [
    pytest.param(family, size, number, id=f'{family}-{number}')
    for family, sizes in SIZES.items() for size, number in sizes.items()])
def test_parameters(family, size, number):
  """Those of the released checkpoints."""
  assert count_parameters(shapes_of(family, size())) == number


@pytest.mark.parametrize(('size', 'published'), [(transformer.base, 65), (transformer.big, 213)],
                         ids=['base', 'big'])
def test_parameters_of_the_transformer(size, published):
  """Vaswani et al. 2017, table 3, in millions; the vocabulary is of about 37,000."""
  assert count_parameters(shapes_of('bart', size())) / 1e6 == pytest.approx(published, rel=0.035)


def shrunk(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
  """Layers differ in number between the sides, and inner sizes from the width."""
  head_size = 6 if config.block.head_size else None
  block = dataclasses.replace(config.block, width=16, heads=4, mlp_dim=24, head_size=head_size)
  factor = 16 ** -0.5 if config.logit_factor != 1 else 1.0
  return dataclasses.replace(
      config, vocab=40, block=block, stack=StackConfig(2), decoder=StackConfig(1),
      max_length=config.max_length and 32, logit_factor=factor,
      embed_factor=4.0 if config.embed_factor != 1 else 1.0)


KINDS = {
    't5': ('t5', shrunk(t5.small())),
    'v1.1': ('t5', shrunk(t5.v1_1_small())),
    'mt5': ('mt5', shrunk(t5.mt5_small())),
    'umt5': ('umt5', shrunk(t5.umt5_small())),
    'bart': ('bart', shrunk(bart.base())),
    'bart_sides': ('bart', dataclasses.replace(shrunk(bart.base()), decoder_heads=2,
                                               decoder_mlp_dim=40)),
    'bart_bias': ('bart', dataclasses.replace(shrunk(bart.base()), logit_bias=True)),
    'mbart': ('mbart', shrunk(bart.mbart_large())),
}


@pytest.fixture(scope='module', params=[
    pytest.param(kind, marks=[pytest.mark.slow] * (kind not in ('t5', 'bart'))) for kind in KINDS])
def saved(request, tmp_path_factory):
  """-> family, configuration, parameters, and the folder that they were written to."""
  family, config = KINDS[request.param]
  folder = tmp_path_factory.mktemp('out') / 'checkpoint'
  params = tiny.random_params(shapes_of(family, config))
  conversion.save(folder, config, params, like=family)
  return family, config, params, folder


def test_written_and_read_back(saved):
  family, config, params, folder = saved
  imported = conversion.load(folder)
  assert (imported.family, [*imported.heads]) == (family, ['lm'])
  assert imported.config == config
  tiny.assert_same(imported.params, params)


def test_export_of_an_import_equals_the_original(saved, tmp_path):
  *_, folder = saved
  imported = conversion.load(folder)
  conversion.save(tmp_path / 'again', imported.config, imported.params, like=imported)
  first, second = (place / 'model.safetensors' for place in (folder, tmp_path / 'again'))
  assert second.read_bytes() == first.read_bytes()


def changed(folder, new, tensors=(), **attributes):
  """A copy of a checkpoint with other attributes and more tensors (name, array)."""
  from safetensors import numpy as safetensors
  new.mkdir()
  said = json.loads((folder / 'config.json').read_text())
  (new / 'config.json').write_text(json.dumps({**said, **attributes}))
  held = safetensors.load_file(folder / 'model.safetensors')
  safetensors.save_file({**held, **{name: make(held) for name, make in tensors}},
                        new / 'model.safetensors')
  return new


def written(kind, tmp_path_factory):
  family, config = KINDS[kind]
  folder = tmp_path_factory.mktemp('kind') / 'checkpoint'
  conversion.save(folder, config, tiny.random_params(shapes_of(family, config)), like=family)
  return folder


def test_copies_in_the_first_files(tmp_path, tmp_path_factory):
  folder = written('t5', tmp_path_factory)
  copies = [(name, lambda held: held['shared.weight'].copy()) for name in (
      'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight')]
  unused = ('decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight',
            lambda held: np.zeros((32, 4)))
  old = changed(folder, tmp_path / 'old', [*copies, unused], n_positions=512)
  imported = conversion.load(old)
  assert imported.config == KINDS['t5'][1]
  conversion.save(tmp_path / 'again', imported.config, imported.params, like=imported)
  other = [('encoder.embed_tokens.weight', lambda held: held['shared.weight'] + 1)]
  wrong = changed(folder, tmp_path / 'wrong', other)
  with pytest.raises(ConvertError,
                     match=r'encoder.embed_tokens.weight differs from what it has to equal'):
    conversion.load(wrong)


def test_embeddings_without_scaled_logits_are_untied(tmp_path, tmp_path_factory):
  """transformers 5 writes v1.1 like this: two matrices, although tie_word_embeddings is true."""
  folder = written('v1.1', tmp_path_factory)
  newer = changed(folder, tmp_path / 'newer', tie_word_embeddings=True, scale_decoder_outputs=False)
  assert conversion.load(newer).config == KINDS['v1.1'][1]


def test_an_encoder_alone(tmp_path):
  config = dataclasses.replace(shrunk(t5.v1_1_small()), decoder=StackConfig(0), tied=True)
  model = conversion.get_family('t5').backbone(config)
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), {
      name: np.ones((1, 8), np.int32) for name in ('tokens', 'segments')}))['params']
  params = {'backbone': tiny.random_params(shapes)}
  assert set(params['backbone']) == {'tokens', 'encoder'}
  conversion.save(tmp_path / 'out', config, params, like='t5')
  said = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert said['architectures'] == ['T5EncoderModel']
  imported = conversion.load(tmp_path / 'out')
  assert imported.config == config
  tiny.assert_same(imported.params, params)


def test_settings_without_a_counterpart_in_t5_are_not_exported(tmp_path, tmp_path_factory):
  odd = dataclasses.replace(KINDS['t5'][1], logit_factor=0.5)
  with pytest.raises(ConvertError, match=r'T5 multiplies logits by 0\.25 with tied embeddings'):
    conversion.save(tmp_path / 'odd', odd, tiny.random_params(shapes_of('t5', odd)), like='t5')
  sides = dataclasses.replace(KINDS['t5'][1], decoder_heads=2)
  with pytest.raises(ConvertError, match='decoder_heads: 2 has no counterpart there'):
    conversion.save(tmp_path / 'sides', sides, tiny.random_params(shapes_of('t5', sides)),
                    like='t5')
  folder = written('bart', tmp_path_factory)
  with pytest.raises(ConvertError,
                     match=r'fc1\.weight is \[24, 16\], the configuration makes it \[48, 16\]'):
    conversion.load(changed(folder, tmp_path / 'two', decoder_ffn_dim=48))
