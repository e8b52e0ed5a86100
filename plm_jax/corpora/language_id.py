"""Language identification of texts, by py3langid or a fastText classifier of the user's own."""
from collections.abc import Callable, Mapping
import functools

from plm_jax.errors import ConfigError, name_field

LanguageIdentifier = Callable[[str], Mapping[str, float]]


@functools.cache
def load_identifier(model: str = '') -> LanguageIdentifier:
  """Load the function that returns the probability of each language (ISO 639 code) of a text.

  Args:
    model: a .bin of fastText's `supervised` whose labels are __label__CODE; '': py3langid.

  Raises:
    ConfigError: py3langid is not installed, and no model is given.
    FastTextError: the file is no such model.
  """
  if model:
    return load_fasttext(model)
  try:
    from py3langid import langid  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise ConfigError(
        "languages are identified by the package py3langid: pip install 'plm_jax[corpora]'; or by "
        f'a fastText model that you give with {name_field("language_model")}') from error
  loaded = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
  return lambda text: dict(loaded.rank(text))


def load_fasttext(model: str) -> LanguageIdentifier:
  """Load a language identifier from a .bin of fastText."""
  # These modules import JAX, and there are many workers.
  from plm_jax.word_vectors import classifier, fasttext_bin

  loaded = fasttext_bin.load(model)
  predict = classifier.make_predictor(loaded, len(loaded.labels))

  def identify(text: str) -> Mapping[str, float]:
    return {label.removeprefix(classifier.LABEL_PREFIX): probability
            for label, probability in predict(text.split())}

  return identify
