"""BART, mBART and Marian with untied embeddings, compared with transformers if it and torch are
installed."""
import jax
import numpy as np
import pytest

from plm_jax import conversion
from plm_jax.models import transformer
from plm_jax.models.rules import ConvertError

SIZES = dict(
    vocab_size=50, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=24, pad_token_id=1,
    bos_token_id=0, eos_token_id=2,
    decoder_start_token_id=2, forced_eos_token_id=2)


@pytest.mark.slow
@pytest.mark.parametrize(('family', 'name', 'changes'), [
    ('bart', 'BartForConditionalGeneration', {'tie_word_embeddings': False}),
    ('mbart', 'MBartForConditionalGeneration', {'tie_word_embeddings': False}),
    ('marian', 'MarianMTModel', {'share_encoder_decoder_embeddings': False}),
    ('marian', 'MarianMTModel', {'share_encoder_decoder_embeddings': False,
                                 'tie_word_embeddings': False})],
    ids=['bart', 'mbart', 'marian', 'marian_untied'])
def test_untied_embeddings_of_encoder_and_decoder(tmp_path, family, name, changes):
  """Import gives the same logits, and transformers reads the export as the same model."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  pytest.importorskip('safetensors')
  torch.manual_seed(0)
  cls = getattr(transformers, name)
  model = cls(cls.config_class(**SIZES, **changes)).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.requires_grad:  # sinusoidal positions are fixed
        parameter.add_(0.2 * torch.randn_like(parameter))
  model.save_pretrained(tmp_path / 'theirs')
  draw = np.random.default_rng(0)
  tokens, written = draw.integers(3, 50, (2, 12)), draw.integers(3, 50, (2, 8))
  def logits(model):
    with torch.no_grad():
      return model(input_ids=torch.tensor(tokens),
                   decoder_input_ids=torch.tensor(written)).logits.numpy()

  imported = conversion.load(tmp_path / 'theirs')
  batch = {'tokens': tokens, 'segments': np.ones_like(tokens), 'decoder_tokens': written,
           'decoder_segments': np.ones_like(written)}
  own = imported.model()
  with jax.default_matmul_precision('highest'):
    got = jax.jit(lambda params: own.apply({'params': params}, batch))(imported.params)
  np.testing.assert_allclose(got['lm'], logits(model), atol=2e-5)
  assert imported.config.separate_embeddings

  conversion.save(tmp_path / 'ours', imported.config, imported.params,
                  like=conversion.ExportTemplate(family))
  again, report = cls.from_pretrained(tmp_path / 'ours', output_loading_info=True)
  np.testing.assert_array_equal(logits(again.eval()), logits(model))
  assert not any(report.values())


def test_two_vocabularies_are_refused():
  said = {'vocab_size': 50, 'decoder_vocab_size': 60, 'share_encoder_decoder_embeddings': False}
  with pytest.raises(ConvertError, match=r'vocabularies of unequal size .* \[50, 60\]'):
    transformer.normalize_hf_config(said)
