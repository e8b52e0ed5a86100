"""In which language a text is: by py3langid, or by a classifier of fastText's that the user has."""
from collections.abc import Callable
import functools

from plm_jax.errors import ConfigError

Identifier = Callable[[str], tuple[str, float]]


@functools.cache
def identifier(model: str = '') -> Identifier:
  """Returns what tells a text's language, ISO 639's code, and how probable it is.

  model: a .bin of fastText's `supervised` whose labels are __label__CODE; '': py3langid. Raises ConfigError where
  neither can be had, FastTextError for a file that is none.
  """
  if model:
    return fasttext(model)
  try:
    from py3langid import langid  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise ConfigError("languages are told by the package py3langid: pip install 'plm_jax[corpora]'; or by a model of "
                      'fastText that you give with --language-model') from error
  return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True).classify


def fasttext(model: str) -> Identifier:
  """Returns what tells languages by a .bin of fastText's."""
  from plm_jax.vectors import classifier, fasttext_bin  # which import JAX, and workers are many

  predict = classifier.predictor(fasttext_bin.load(model))
  def identify(text: str) -> tuple[str, float]:
    found = predict(text.split())
    return (found[0][0].removeprefix(classifier.LABEL), found[0][1]) if found else ('', 0.0)
  return identify
