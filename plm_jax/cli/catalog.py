"""The commands of `plm-jax` for its help: groups, usage, examples, and the options people use.

Descriptions of arguments come from the code of the commands (`signatures`). This module imports
nothing that takes time.
"""
import importlib
from typing import Any, NamedTuple


class Command(NamedTuple):
  """A command as its help shows it."""

  group: str
  summary: str
  """one line of the list of commands"""
  usage: str
  """arguments after the name"""
  examples: tuple[str, ...]
  """arguments of example invocations"""
  function: str = ''
  """module of plm_jax.cli and function, such as predict.predict_command"""
  config: str = ''
  """module and class whose fields are options, such as plm_jax.config.run.PretrainRun"""
  main: tuple[str, ...] = ()
  """options of the short help; none: those that are in no section"""
  own: tuple[tuple[str, str, str], ...] = ()
  """(option, values, description) of options that are in no code that `signatures` reads; names of
  registries are {fields} of `signatures.registered_words`"""
  notes: str = ''
  """a paragraph after the summary"""


def import_name(place: str) -> Any:
  """Import a function or class, such as plm_jax.config.run.PretrainRun."""
  module, _, name = place.rpartition('.')
  return getattr(importlib.import_module(module), name)


def import_function(place: str) -> Any:
  """Import a function of a module of plm_jax.cli, such as predict.predict_command."""
  return import_name(f'plm_jax.cli.{place}')


TEXT, TRAIN, FOLLOW, USE, EVALUATE, SHELL = GROUPS = (
    'Prepare text', 'Train', 'Check and monitor runs', 'Use a model', 'Evaluate and analyze',
    'Shell')

RUN_OPTIONS = (
    'scale', 'hours', 'output', 'data.path', 'data.heldout-path', 'model.vocab',
    'train.phases.0.steps', 'train.phases.0.batch', 'train.phases.0.length', 'train.accumulate',
    'optim.peak', 'optim.warmup', 'optim.schedule', 'optim.weight-decay', 'model.block.dropout',
    'model.block.dtype', 'warm-start', 'seed', 'prompts', 'train.log-every', 'train.eval-every',
    'train.save-every', 'train.wandb', 'mesh.fsdp', 'mesh.tensor', 'hosts.distributed', 'mode')
FINETUNE_OPTIONS = (
    'scale', 'output', 'data.epochs', 'train.phases.0.batch', 'train.phases.0.length',
    'optim.peak', 'data.warmup', 'optim.layer-decay', 'data.columns.first', 'data.columns.second',
    'data.columns.label', 'tuning.adapter.kind', 'tuning.adapter.rank', 'data.unfreeze',
    'train.best', 'train.early', 'model.block.dropout', 'seed', 'mesh.fsdp')

COMMANDS: dict[str, Command] = {
    'clean': Command(
        TEXT, 'Filter, deduplicate and decontaminate a corpus.', 'TEXT OUTPUT',
        ('dump.jsonl.gz cleaned --rules c4', "'crawl/*.txt' cleaned --duplicates exact"),
        'clean.clean_command', main=(
            'rules', 'output', 'languages', 'duplicates', 'similarity', 'decontaminate',
            'min-sentences', 'min-line-words', 'quality', 'repetition', 'bad-words', 'samples',
            'on-error', 'encoding', 'text-field', 'documents', 'workers', 'beam')),
    'prepare': Command(
        TEXT, 'Tokenize a corpus into token records.', 'TEXT OUTPUT',
        ('corpus.txt records --for bert_base', 'a.txt,b.txt records --vocab 8000',
         'corpus.jsonl records --tokenizer runs/bert_base/tokenizer'),
        'prepare.prepare_command', main=(
            'for', 'scale', 'output', 'vocab', 'kind', 'tokenizer', 'lowercase', 'strip-accents',
            'heldout-path', 'heldout', 'sentences', 'segmenter', 'coverage', 'on-error', 'encoding',
            'text-field', 'documents', 'workers', 'beam')),
    'inspect': Command(
        TEXT, 'Show the model inputs of a run: tokens, masks and labels.',
        'RECIPE [options of train] | inspect finetune --task=TASK [options of finetune]',
        ('bert_base --scale=laptop', 'finetune --task=classification --train=t.tsv --init=RUN'),
        config='plm_jax.config.run.PretrainRun', main=('scale', 'data.path', 'seed'), own=(
            ('rows', 'INT', 'number of sequences to show (default: 2)'),
            ('step', 'INT', 'step whose batch is shown (default: 0)'),
            ('page', 'FILE', 'also write an HTML page, with a picture of the attention mask'))),
    'packing': Command(
        TEXT, 'Compare how well each packing strategy fills sequences.', 'RECORDS',
        ('records', 'records --length 128 --batch 256'), 'prepare.packing_command'),
    'expand-vocab': Command(
        TEXT, 'Add words of a domain to the vocabulary of a model.', 'RUN TEXT OUTPUT',
        ('runs/bert_base medical.txt expanded --words 2000',),
        'export.expand_vocab_command'),
    'train': Command(
        TRAIN, 'Pre-train a model. `train` alone lists all recipes.', 'RECIPE',
        ('bert_base --scale=laptop', 'bert_base --scale=laptop --data.path corpus.txt',
         'gpt2_small --scale=laptop --train.phases.0.steps=500 --optim.peak=1e-3'),
        'commands.train_command', config='plm_jax.config.run.PretrainRun', main=RUN_OPTIONS, own=(
            ('pair', 'none', 'leave out the sentence-pair task of BERT (NSP) or ALBERT (SOP), '
             'which needs documents of several sentences'),), notes=(
            'The recipe and the scale set the defaults; `{program} show RECIPE` prints them. To '
            'resume a run that was stopped, run the same command again. `--train.phases.0` is the '
            'first phase; some recipes have a second one, `--train.phases.1`.')),
    'finetune': Command(
        TRAIN, 'Fine-tune a model on a task with published hyperparameters.',
        '--task=TASK [--init=RUN] [--train=FILE] [--dev=FILE] [options]',
        ('--init=runs/bert_base --task=sst2',
         '--init=runs/bert_base --task=classification --train=train.tsv --dev=dev.tsv',
         '--task=classification --scale=laptop'),
        config='plm_jax.config.run.FinetuneRun', main=FINETUNE_OPTIONS, own=(
            ('init', 'RUN', 'model to fine-tune: a run folder or a transformers checkpoint'),
            ('task', 'TASK', 'a named task (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, squad, '
             'conll2003, ...), or a kind of task for your own files: {kind}'),
            ('train', 'FILE...', 'training files: .tsv, .csv, .jsonl, .json, .conll, .conllu, '
             '.txt, plain or compressed (.gz, .xz); or tfds:NAME:SPLIT'),
            ('dev', 'FILE...', 'development files; many named tasks have their own, and without '
             'any nothing is evaluated'),
            ('seeds', 'INT', 'number of runs with different random seeds; a summary is printed '
             'at the end (default: 1)'),
            ('sweep', 'NAME=VALUES', 'values to try of an option, such as '
             'learning-rate=1e-5,2e-5; repeat it for other options. Every combination is a run, '
             'and a table compares them'),
            ('loss', 'NAME', 'loss of sentence embeddings: {vector_loss}; of reranking: '
             '{ranking_loss}'),
            ('regularizer', 'NAME', 'regularization: rdrop (R-Drop), or adversarial training: fgm, '
             'freelb, sift; none: off'),
            ('vectors', 'FILE', 'word vectors to concatenate with the features of an ELMo model'),
            ('scale', 'paper,laptop,test', 'hyperparameters to use. paper: as published; laptop: '
             'for a small model; test: seconds; by default, the size of the model decides'),
            ('output', 'TEXT', 'run folder for checkpoints, metrics and report, local or gs://; '
             'runs/finetune_TASK-MODEL by default, which ends with -SCALE for scales other than '
             'paper'))),
    'distill': Command(
        TRAIN, 'Distill an encoder into static token embeddings.', 'RUN OUTPUT',
        ('runs/bert_base vectors --size 256',), 'similarity.distill_command'),
    'vectors': Command(
        TRAIN, 'Query, evaluate and export word vectors.', 'COMMAND',
        ('nearest runs/word2vec king', 'analogy runs/word2vec man king woman'), notes=(
            'To train word vectors, use `{program} train word2vec`, word2vec_cbow, glove, fasttext '
            'or cw.')),
    'doctor': Command(
        FOLLOW, 'Check machine, options, text and output folder of a run.',
        '[RECIPE [options of train]]',
        ('', 'bert_base --scale=laptop --data.path=corpus.txt', 'bert_base --topology=v2:4x4'),
        config='plm_jax.config.run.PretrainRun',
        main=('scale', 'data.path', 'output', 'mesh.fsdp', 'mesh.tensor'), own=(
            ('step', '', 'run a few training steps, and report the time to the first step and the '
             'chip-hours of the run'),
            ('topology', 'POD', 'compile the training step for a TPU pod, such as v2:4x4, and '
             'print a lower bound on the chip-hours')),
        notes='Without a recipe, only the machine is checked. The exit status is 1 if there is a '
        'fault.'),
    'plan': Command(
        FOLLOW, 'Choose size, batch and steps for a device and a time.',
        'RECIPE --device=NAME [options of train]',
        ('bert_base --data.path=corpus.txt --hours=24 --device=rtx4090',
         'gpt2_small --tokens=100000000 --device=4xa100-80gb'),
        config='plm_jax.config.run.PretrainRun', main=('data.path', 'hours'), own=(
            ('device', 'NAME', 'GPU or TPU: rtx4090, a100-40gb, h100, 8xh100, t4, l4, v5e-8, ...'),
            ('tokens', 'INT', 'number of tokens of the text; default: count --data.path')),
        notes='Memory and hours are estimates. `train RECIPE --scale=gpu --hours=H` measures them '
        'on the device.'),
    'show': Command(
        FOLLOW, 'Show parameters, schedule, options and layers of a recipe.',
        'RECIPE [options of train]',
        ('bert_base', 'gpt3_13b --scale=laptop --optim.peak=1e-3'),
        config='plm_jax.config.run.PretrainRun', main=('scale',), own=(
            ('all', '', 'also print the options at their defaults'),
            ('layers', '', 'also print the table of layers'),
            ('depth', 'INT', 'the same, with so many levels of modules'))),
    'watch': Command(
        FOLLOW, 'Show the curves of a run in the terminal while it runs.', 'RUN',
        ('runs/bert_base-laptop', 'gs://BUCKET/runs/bert_base --every 60'),
        'watch.watch_command'),
    'compare': Command(
        FOLLOW, 'Compare the metrics, options and outputs of runs.', 'RUN RUN...',
        ('runs/one runs/two --page compared.html',), 'compare.compare_command'),
    'verify': Command(
        FOLLOW, 'Check the files of a run or of token records for damage.', 'FOLDER',
        ('runs/bert_base', 'records'), 'verify.verify_command'),
    'fill-mask': Command(
        USE, 'Print the most likely tokens for every [MASK].', 'RUN PROMPT...',
        ("runs/bert_base-laptop 'Returns the [MASK] of the array.'",
         'runs/bert_base-laptop - --top 3 < prompts.txt'), 'fill_mask.fill_mask_command'),
    'generate': Command(
        USE, 'Generate text from prompts.', 'RUN PROMPT...',
        ("runs/gpt2_small-laptop 'Returns the' --max-new 32",
         "runs/gpt2_small-laptop 'Returns' --temperature 0.8 --top-p 0.9 --number 3",
         'runs/t5_small-laptop - < inputs.txt'), 'generation.generate_command'),
    'predict': Command(
        USE, 'Predict the labels of the examples in a file.', 'RUN FILE',
        ('runs/classification-laptop test.tsv --output predictions.jsonl',
         'runs/classification-laptop - < texts.txt'), 'predict.predict_command'),
    'answer': Command(
        USE, 'Answer questions with spans of a text (extractive QA).',
        'RUN QUESTION... --context=TEXT',
        ("runs/squad 'Who wrote it?' --context=article.txt",
         "runs/squad 'Who?' 'When?' --context=- < article.txt"), 'predict.answer_command'),
    'tag': Command(
        USE, 'Tag words or entities (token classification, NER).', 'RUN TEXT...',
        ("runs/conll2003 'Angela Merkel came.'", 'runs/conll2003 texts.txt --output tags.conll'),
        'predict.tag_command'),
    'encode': Command(
        USE, 'Write one vector per text of a file.', 'RUN TEXTS --output=VECTORS',
        ('runs/bert_base texts.txt --output=vectors.npy',
         'runs/bert_base texts.txt --output=tokens.npz --pooling=none'),
        'encode.encode_command'),
    'similar': Command(
        USE, 'Print the similarity of texts.', 'RUN TEXT TEXT... | similar RUN FILE',
        ("runs/embedder 'a cat' 'a kitten' 'a car'", 'runs/embedder pairs.tsv'),
        'similarity.similar_command'),
    'search': Command(
        USE, 'Print the texts of a corpus that are nearest to a query.',
        'RUN CORPUS QUERY...',
        ("runs/embedder corpus.txt 'how to sort an array'",
         'runs/embedder vectors.npy queries.txt --output hits.jsonl'),
        'similarity.search_command'),
    'rerank': Command(
        USE, 'Score and sort documents by their relevance for queries (cross-encoder).',
        'RUN QUERIES DOCUMENTS',
        ("runs/ranker 'how to sort an array' documents.txt",
         'runs/ranker queries.txt documents.jsonl --top=5 --output=hits.jsonl'),
        'similarity.rerank_command'),
    'mine-negatives': Command(
        USE, 'Write hard negatives for pairs of a query and a relevant document.',
        'RETRIEVER PAIRS --output=FILE',
        ('bm25 pairs.jsonl --output=mined.jsonl',
         'runs/embedder pairs.jsonl --corpus=documents.txt --judge=runs/ranker '
         '--output=mined.jsonl'),
        'retrieval.mine_negatives_command'),
    'export': Command(
        USE, 'Export a model as a transformers checkpoint.', 'RUN OUTPUT',
        ('runs/bert_base exported', 'runs/bert_base exported --dtype bfloat16'),
        'export.export_command'),
    'push': Command(
        USE, 'Export a model and upload it to the Hugging Face hub.', 'RUN NAME',
        ('runs/bert_base ORG/NAME', 'runs/bert_base ORG/NAME --public'),
        'export.push_command'),
    'evaluate': Command(
        EVALUATE, 'Evaluate a run on its held-out text or on other text.', 'RUN [TEXT...]',
        ('runs/bert_base-laptop', 'runs/bert_base-laptop other.txt'),
        'evaluation.evaluate_command'),
    'perplexity': Command(
        EVALUATE, 'Print the perplexity of texts under a decoder.', 'RUN TEXT',
        ('runs/gpt2_small-laptop test.txt', 'runs/gpt2_small-laptop test.txt --stride 64'),
        'evaluation.perplexity_command'),
    'few-shot': Command(
        EVALUATE, 'Evaluate a language model with zero- or few-shot prompts.', 'RUN TASK',
        ('runs/gpt2_small piqa', 'runs/gpt2_small boolq --shots 8 --data boolq.jsonl'),
        'evaluation.few_shot_command'),
    'evaluate-retrieval': Command(
        EVALUATE, "Evaluate retrieval and reranking on a data set in BEIR's layout.",
        'RETRIEVER FOLDER',
        ('runs/embedder scifact', 'bm25 scifact --reranker=runs/ranker --depth=50'),
        'retrieval.evaluate_retrieval_command'),
    'mteb': Command(
        EVALUATE, 'Evaluate text vectors or a cross-encoder on tasks of MTEB.', 'RUN TASK...',
        ('runs/embedder SICK-R STSBenchmark', 'runs/embedder NanoBEIR --name=ORG/NAME'),
        'retrieval.mteb_command'),
    'text-to-text': Command(
        EVALUATE, 'Evaluate an encoder-decoder on a text-to-text task.', 'RUN TASK',
        ('runs/t5_small task:sst2:dev.tsv',), 'generation.text_to_text_command'),
    'minimal-pairs': Command(
        EVALUATE, 'Evaluate on minimal pairs, such as BLiMP.', 'RUN FILE...',
        ("runs/bert_base 'blimp/*.jsonl'",), 'minimal_pairs.minimal_pairs_command'),
    'probe': Command(
        EVALUATE, 'Train and evaluate a linear probe on each layer.', 'RUN TRAIN TEST',
        ('runs/bert_base train.conll test.conll',), 'probing.probe_command'),
    'attention': Command(
        EVALUATE, 'Analyze and plot the attention patterns of each head.', 'RUN TEXT...',
        ("runs/bert_base 'Returns the mean of the array.' --page attention.html",),
        'probing.attention_command'),
    'losses': Command(
        EVALUATE, 'Print token losses by token frequency and by position.', 'RUN TEXT...',
        ('runs/gpt2_small test.txt --corpus train.txt',), 'knowledge.losses_command'),
    'neighbors': Command(
        EVALUATE, 'Print the nearest neighbors of a word in a sentence.', 'RUN SENTENCE TEXT...',
        ("runs/bert_base 'the *bank* of a river' sentences.txt",),
        'knowledge.neighbors_command'),
    'completion': Command(
        SHELL, 'Print a script for tab completion.', 'bash|zsh', ('bash', 'zsh'), notes=(
            'Put `eval "$({program} completion bash)"` into ~/.bashrc, or the same with zsh into '
            '~/.zshrc. Commands, options, recipes and file names are completed.')),
}

VECTORS: dict[str, Command] = {
    'nearest': Command(
        '', 'Print the nearest neighbors of a word.', 'VECTORS WORD...',
        ('runs/word2vec king', 'runs/word2vec king woman --away man'), 'vectors.nearest_command'),
    'analogy': Command(
        '', 'Answer an analogy: A is to B as C is to what?', 'VECTORS A B C',
        ('runs/word2vec man king woman',), 'vectors.analogy_command'),
    'measure': Command(
        '', 'Evaluate vectors on word similarity and analogies.', 'VECTORS FILE...',
        ('runs/word2vec wordsim.tsv questions-words.txt',), 'vectors.measure_command'),
    'export': Command(
        '', 'Export word vectors to the format of another library.', 'VECTORS OUTPUT',
        ('runs/word2vec vectors.vec', 'runs/fasttext vectors.bin --form fasttext'),
        'vectors.export_command'),
    'classify': Command(
        '', "Train fastText's text classifier.", 'TEXT OUTPUT', ('train.txt model.bin',),
        'vectors.classify_command'),
    'predict': Command(
        '', 'Print the most likely labels of each line of a file.', 'MODEL TEXT',
        ('model.bin test.txt --top 2',), 'vectors.predict_command'),
    'test': Command(
        '', 'Score a classifier on texts with labels.', 'MODEL TEXT', ('model.bin test.txt',),
        'vectors.score_command'),
}

PRINTING_COMMANDS = 'predict', 'tag', 'similar', 'search', 'rerank'
"""commands that print their results without --output, or with --output=-"""

FOREIGN_COMMANDS = {
    'convert': 'export', 'pretrain': 'train', 'fit': 'train', 'list': 'train', 'info': 'show',
    'embed': 'encode', 'sample': 'generate', 'tokenize': 'prepare', 'preprocess': 'prepare',
    'ner': 'tag', 'qa': 'answer', 'classify': 'predict'}
"""names that people bring from other libraries"""

FOREIGN_OPTIONS: dict[str, tuple[str, ...]] = {
    'lr': ('optim.peak',), 'learning-rate': ('optim.peak',),
    'batch-size': ('train.phases.0.batch', 'batch', 'tokens'),
    'epochs': ('data.epochs', 'train.phases.0.steps', 'train.epochs'),
    'num-train-epochs': ('data.epochs', 'train.phases.0.steps'),
    'max-steps': ('train.phases.0.steps',), 'max-seq-length': ('train.phases.0.length',),
    'warmup-steps': ('optim.warmup',), 'gradient-accumulation-steps': ('train.accumulate',),
    'fp16': ('model.block.dtype',), 'bf16': ('model.block.dtype',), 'output-dir': ('output',),
    'model-name-or-path': ('init', 'warm-start'), 'max-new-tokens': ('max-new',)}
"""options of other libraries, and ours: of the candidates, those that the command has"""
