"""Time an optimizer step of every family, 4 layers of 512, next to transformers with torch's AdamW, on the CPU.

    python -m benchmarks.family_step
    python -m benchmarks.family_step --family albert xlnet

transformers runs twice: eager and with torch.compile. Both use SDPA, its default. The ratio is to the faster of the
two.

Needs the extra `bench`. Sequences have 128 tokens, the batch size is 16, dropout is 0.1, computation is in float32,
gradients are clipped to 1, and the vocabulary size is 30,522 for all. Each family is trained with its published
objective. For two families transformers has only masked language modeling: SpanBERT without its boundary objective, and
DeBERTa without its mask decoder. There its step computes less than plm_jax does. transformers has no losses for
distillation and replaced-token detection, so this module defines them in torch. transformers computes logits at
every position, plm_jax only at the predicted positions. Decoders predict at every position, and LLaMA has no dropout.
gpt2-small is GPT-2 small, with a batch size of 4. Encoder-decoders have 4 layers on each side: T5 reads 128 tokens and
writes 29 target tokens, BART writes its whole text. t5-small is T5's small size. Layers are unrolled and freed memory
is kept, as in runs at the laptop scale. CPU seconds count all threads of a contestant: compare these if other programs
run on the machine.
"""
import argparse
from typing import Any

from benchmarks.side_by_side import compare, machine
from benchmarks.training_step import (
  LENGTH,
  VOCAB,
  masked_batch,
  plm_jax,
  share,
  torch_ready,
  torch_step,
)

LAYERS, WIDTH = 4, 512
CONTESTANTS = ('plm_jax', 'transformers', 'torch.compile')
FAMILIES = ('bert', 'roberta', 'albert', 'spanbert', 'distilbert', 'deberta', 'deberta-v2', 'electra', 'xlnet', 'gpt',
            'gpt2', 'gpt2-small', 'llama', 't5', 't5-small', 'bart')
# The common sizes under transformers' most common names. Families with other names get them in `theirs`.
SIZES: Any = dict(vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=WIDTH // 64,
                  intermediate_size=4 * WIDTH)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--family', choices=FAMILIES, nargs='*', default=list(FAMILIES))
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--contestant', choices=CONTESTANTS, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.contestant == 'plm_jax':
    plm_jax(*ours(args.family[0]), rows(args.family[0]))
  elif args.contestant:
    theirs(args.family[0], compiled=args.contestant == 'torch.compile')
  else:
    print(machine('jax', 'torch', 'transformers'))
    print('\n| family | plm_jax ms | spread | transformers ms | torch.compile ms | spread | ratio | ratio of CPU s '
          '| plm_jax of peak | torch of peak |')
    print('|---|---|---|---|---|---|---|---|---|---|')
    for family in args.family:
      result = compare('benchmarks.family_step', CONTESTANTS, ['--family', family], args.rounds)
      own, plain, compiled = (result[name] for name in CONTESTANTS)
      best = min(plain, compiled, key=lambda figures: figures['median'])
      print(f'| {family} | {1000 * own["median"]:.0f} | {milliseconds(own)} | {1000 * plain["median"]:.0f} '
            f'| {1000 * compiled["median"]:.0f} | {milliseconds(best)} | {best["median"] / own["median"]:.2f} '
            f'| {best["cpu"] / own["cpu"]:.2f} | {share(own)} | {share(best)} |', flush=True)


def milliseconds(figures: dict[str, float]) -> str:
  return f'{1000 * figures["least"]:.0f} to {1000 * figures["most"]:.0f}'


def rows(family: str) -> int:
  return 4 if family == 'gpt2-small' else 16


def ours(family: str) -> tuple[Any, Any]:
  """Return the model configuration and the objective of a family."""
  import dataclasses

  from plm_jax.models import (
    albert,
    bart,
    bert,
    deberta,
    distilbert,
    electra,
    gpt,
    gpt2,
    llama,
    roberta,
    t5,
    xlnet,
  )
  from plm_jax.objectives.clm import CausalLM
  from plm_jax.objectives.denoising import DenoisingAutoencoder
  from plm_jax.objectives.distillation import Distillation
  from plm_jax.objectives.mlm import MaskedLM
  from plm_jax.objectives.plm import PermutationLM
  from plm_jax.objectives.row_builders import SentenceOrder, Single
  from plm_jax.objectives.rtd import ReplacedTokenDetection
  from plm_jax.objectives.sbo import SpanBoundary
  from plm_jax.objectives.span_corruption import MixtureOfDenoisers
  from plm_jax.recipes.scale_presets import unroll_layers

  single, teacher = MaskedLM(Single()), bert.make_config(2 * LAYERS, WIDTH)
  config, objective = {
      'bert': lambda: (bert.make_config(LAYERS, WIDTH), MaskedLM()),
      'roberta': lambda: (roberta.make_config(LAYERS, WIDTH), single),
      'albert': lambda: (albert.make_config(LAYERS, WIDTH, WIDTH // 64), MaskedLM(SentenceOrder())),
      'spanbert': lambda: (bert.make_config(LAYERS, WIDTH), SpanBoundary()),
      'distilbert': lambda: (distilbert.student(teacher), Distillation(model=teacher)),
      'deberta': lambda: (deberta.make_config(LAYERS, WIDTH), single),
      'deberta-v2': lambda: (deberta.make_v2_config(LAYERS, WIDTH, conv=3, conv_activation='gelu'), single),
      'electra': lambda: (electra.make_config(LAYERS, WIDTH), ReplacedTokenDetection()),
      'xlnet': lambda: (xlnet.make_config(LAYERS, WIDTH), PermutationLM(memory=0.0)),
      'gpt': lambda: (resized(gpt.base()), CausalLM()),
      'gpt2': lambda: (gpt2.make_config(LAYERS, WIDTH), CausalLM()),
      'gpt2-small': lambda: (gpt2.small(), CausalLM()),
      'llama': lambda: (llama.make_config(LAYERS, WIDTH, WIDTH // 64, 4 * WIDTH), CausalLM()),
      't5': lambda: (t5.make_config(LAYERS, WIDTH, WIDTH // 64, 4 * WIDTH), MixtureOfDenoisers()),
      't5-small': lambda: (t5.small(), MixtureOfDenoisers()),
      'bart': lambda: (bart.make_config(LAYERS, WIDTH), DenoisingAutoencoder()),
  }[family]()
  return unroll_layers(dataclasses.replace(config, vocab=VOCAB)), objective


def resized(config: Any) -> Any:
  import dataclasses

  block = dataclasses.replace(config.block, width=WIDTH, heads=WIDTH // 64, mlp_dim=4 * WIDTH)
  return dataclasses.replace(config, block=block, stack=dataclasses.replace(config.stack, layers=LAYERS))


def theirs(family: str, compiled: bool) -> None:
  torch = torch_ready()
  import transformers as hf

  number = rows(family)
  batch = masked_batch(torch, number)
  untyped = {name: x for name, x in batch.items() if name != 'token_type_ids'}
  config, objective = ours(family)
  flops = number * objective.step_flops(config, LENGTH)

  def plain(model: Any, batch: dict[str, Any]) -> None:
    model.train()
    torch_step([model], lambda: model(**batch).loss, flops, compiled)

  if family == 'bert':
    plain(hf.BertForPreTraining(hf.BertConfig(**SIZES)),
          {**batch, 'next_sentence_label': torch.randint(0, 2, (number,))})
  elif family == 'roberta':
    plain(hf.RobertaForMaskedLM(hf.RobertaConfig(**SIZES, max_position_embeddings=514)), untyped)
  elif family == 'albert':
    sizes = {**SIZES, 'hidden_dropout_prob': 0.1, 'attention_probs_dropout_prob': 0.1, 'embedding_size': 128}
    plain(hf.AlbertForPreTraining(hf.AlbertConfig(**sizes)),
          {**batch, 'sentence_order_label': torch.randint(0, 2, (number,))})
  elif family == 'spanbert':
    plain(hf.BertForMaskedLM(hf.BertConfig(**SIZES)), batch)
  elif family == 'deberta':
    plain(hf.DebertaForMaskedLM(hf.DebertaConfig(
        **SIZES, relative_attention=True, pos_att_type='c2p|p2c', type_vocab_size=0, max_relative_positions=-1,
        position_biased_input=False)), untyped)
  elif family == 'deberta-v2':
    plain(hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(
        **SIZES, relative_attention=True, pos_att_type='c2p|p2c', type_vocab_size=0, max_relative_positions=-1,
        position_biased_input=False, position_buckets=256, share_att_key=True, norm_rel_ebd='layer_norm',
        conv_kernel_size=3, conv_act='gelu')), untyped)
  elif family == 'xlnet':
    permuted(torch, hf, number, flops, compiled)
  elif family in ('gpt', 'gpt2', 'gpt2-small', 'llama'):
    text = {'input_ids': batch['input_ids'], 'labels': batch['input_ids']}
    shape = dict(n_embd=config.block.width, n_layer=config.stack.layers, n_head=config.block.heads, vocab_size=VOCAB)
    if family == 'llama':
      plain(hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, tie_word_embeddings=False)), text)
    elif family == 'gpt':
      plain(hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**shape)), text)
    else:
      plain(hf.GPT2LMHeadModel(hf.GPT2Config(**shape)), text)
  elif family in ('t5', 't5-small', 'bart'):
    labels = torch.randint(1000, VOCAB, (number, objective.max_predictions(LENGTH)))
    pair = {'input_ids': batch['input_ids'], 'attention_mask': batch['attention_mask'], 'labels': labels}
    plain(encoder_decoder(hf, family, config), pair)
  elif family == 'electra':
    replaced(torch, hf, batch, flops, compiled)
  else:
    distilled(torch, hf, untyped, flops, compiled)


def encoder_decoder(hf: Any, family: str, config: Any) -> Any:
  b, layers = config.block, config.stack.layers
  if family == 'bart':
    return hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=VOCAB, d_model=b.width, encoder_layers=layers, decoder_layers=layers, encoder_ffn_dim=b.mlp_dim,
        decoder_ffn_dim=b.mlp_dim, encoder_attention_heads=b.heads, decoder_attention_heads=b.heads))
  return hf.T5ForConditionalGeneration(hf.T5Config(
      vocab_size=VOCAB, d_model=b.width, num_layers=layers, d_ff=b.mlp_dim, num_heads=b.heads,
      decoder_start_token_id=0))


def permuted(torch: Any, hf: Any, number: int, flops: float, compiled: bool) -> None:
  """Time XLNet's step with two-stream attention.

  One of six tokens is predicted, from the tokens that are not predicted.
  """
  model = hf.XLNetLMHeadModel(hf.XLNetConfig(
      vocab_size=VOCAB, d_model=WIDTH, n_layer=LAYERS, n_head=WIDTH // 64, d_inner=4 * WIDTH, dropout=0.1)).train()
  predicted = LENGTH // 6
  chosen = torch.stack([torch.randperm(LENGTH)[:predicted].sort().values for _ in range(number)])
  mapping = torch.nn.functional.one_hot(chosen, LENGTH).float()
  hidden = mapping.sum(1)[:, None, :].expand(-1, LENGTH, -1)
  batch = {'input_ids': torch.randint(1000, VOCAB, (number, LENGTH)), 'perm_mask': hidden.contiguous(),
           'target_mapping': mapping, 'labels': torch.randint(1000, VOCAB, (number, predicted))}
  torch_step([model], lambda: model(**batch).loss, flops, compiled)


def replaced(torch: Any, hf: Any, batch: dict[str, Any], flops: float, compiled: bool) -> None:
  """Time ELECTRA's step, with shared embeddings and a generator of a quarter of the width."""
  small = {**SIZES, 'hidden_size': WIDTH // 4, 'num_attention_heads': WIDTH // 256, 'intermediate_size': WIDTH}
  generator = hf.ElectraForMaskedLM(hf.ElectraConfig(**small, embedding_size=WIDTH)).train()
  model = hf.ElectraForPreTraining(hf.ElectraConfig(**SIZES, embedding_size=WIDTH)).train()
  theirs, own = generator.electra.embeddings, model.electra.embeddings
  own.word_embeddings, own.position_embeddings = theirs.word_embeddings, theirs.position_embeddings
  own.token_type_embeddings = theirs.token_type_embeddings
  labels, seen = batch['labels'], {name: x for name, x in batch.items() if name != 'labels'}

  def loss():
    filled = generator(**batch)
    asked = labels >= 0
    with torch.no_grad():
      sampled = torch.distributions.Categorical(logits=filled.logits[asked]).sample()
      tokens = seen['input_ids'].clone()
      tokens[asked] = sampled
      wrong = torch.zeros_like(tokens)
      wrong[asked] = (sampled != labels[asked]).long()
    return filled.loss + 50 * model(**{**seen, 'input_ids': tokens}, labels=wrong).loss

  only = torch.nn.ModuleList([generator, model])  # lists shared embedding tables once
  if compiled:
    for module in only:
      module.compile()
  torch_step([only], loss, flops)


def distilled(torch: Any, hf: Any, batch: dict[str, Any], flops: float, compiled: bool) -> None:
  """Time DistilBERT's step: soft targets, MLM and cosine losses, with a BERT teacher of twice the depth."""
  model = hf.DistilBertForMaskedLM(hf.DistilBertConfig(
      vocab_size=VOCAB, dim=WIDTH, n_layers=LAYERS, n_heads=WIDTH // 64, hidden_dim=4 * WIDTH)).train()
  teacher = hf.BertForMaskedLM(hf.BertConfig(**{**SIZES, 'num_hidden_layers': 2 * LAYERS})).eval()
  ones = torch.ones(len(batch['input_ids']) * LENGTH)

  def loss():
    own = model(**batch, output_hidden_states=True)
    with torch.no_grad():
      taught = teacher(**{name: x for name, x in batch.items() if name != 'labels'}, output_hidden_states=True)
    logits, targets = (x.logits.reshape(-1, VOCAB) / 2 for x in (own, taught))
    soft = torch.nn.functional.kl_div(logits.log_softmax(-1), targets.softmax(-1), reduction='batchmean') * 4
    cosine = torch.nn.functional.cosine_embedding_loss(
        own.hidden_states[-1].reshape(-1, WIDTH), taught.hidden_states[-1].reshape(-1, WIDTH), ones)
    return 5 * soft + 2 * own.loss + cosine

  if compiled:
    teacher.compile()
  torch_step([model], loss, flops, compiled)


if __name__ == '__main__':
  main()
