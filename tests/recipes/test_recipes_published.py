"""Sizes and settings of runs as literals from papers and released code, with the source next to
them."""
import math

from flax.linen import unbox
import jax
import pytest
import small_decoders

from plm_jax import conversion, recipes, validation
from plm_jax.cli.run import parse
from plm_jax.errors import ConfigError
from plm_jax.layers.dense import count_parameters
from plm_jax.objectives.clm import CausalLM
from plm_jax.objectives.denoising import SentencePermutation, WordMasking
from plm_jax.objectives.masking import Smoothed, Windowed
from plm_jax.objectives.row_builders import Consecutive, FullSentences, Single
from plm_jax.optim.optimizers import make_schedule
from plm_jax.recipes import finetune
from plm_jax.training.learner import make_learner, placeholder_vocab

# Of a recipe: parameters, millions of them as the paper rounds them (0: it names none), peak, rows,
# tokens in a row.
PAPERS = {
    # Devlin et al. 2019, sections 3.1 and A.2; parameters of transformers' BertForPreTraining.
    'bert_base': (110_106_428, 110, 1e-4, 256, 512),
    'bert_large': (336_226_108, 340, 1e-4, 256, 512),
    # Turc et al. 2019, table 1.
    'bert_tiny': (4_433_468, 4.4, 1e-4, 256, 512), 'bert_mini': (11_267_900, 11.3, 1e-4, 256, 512),
    'bert_small': (29_058_876, 29.1, 1e-4, 256, 512),
    'bert_medium': (41_668_412, 41.7, 1e-4, 256, 512),
    # google-research/bert, README.md and multilingual.md: the vocabularies of the released
    # checkpoints.
    'bert_chinese': (102_882_442, 0, 1e-4, 256, 512),
    'bert_multilingual': (178_566_653, 0, 1e-4, 256, 512),
    'bert_multilingual_uncased': (168_055_961, 0, 1e-4, 256, 512),
    # ymcui/Chinese-BERT-wwm, README_EN.md; ymcui/MacBERT: 102M and 324M, of BertModel.
    'bert_wwm_base': (102_882_442, 102, 1e-4, 2560, 512),
    'bert_wwm_ext': (102_882_442, 102, 1e-4, 2560, 512),
    'roberta_wwm_ext': (102_290_312, 102, 1e-4, 384, 512),
    'roberta_wwm_ext_large': (325_545_608, 324, 1e-4, 512, 512),
    'macbert_base': (102_882_442, 102, 1e-4, 384, 512),
    'macbert_large': (326_597_258, 324, 1e-4, 512, 512),
    # Sun et al. 2019, and transformers' ErnieForPreTraining of the released configuration.
    'ernie_base': (100_477_778, 0, 1e-4, 256, 512),
    # Lample and Conneau 2019, section 5.1; README of facebookresearch/XLM.
    'xlm_xnli15': (249_071_384, 250, 1e-4, 4096, 256),
    'xlm_xnli15_tlm': (249_071_384, 250, 1e-4, 4096, 256),
    # Conneau et al. 2020, section 3 and table 5; RoBERTa's peaks.
    'xlm_r_base': (278_295_186, 270, 6e-4, 8192, 512),
    'xlm_r_large': (560_142_482, 550, 4e-4, 8192, 512),
    # Liu et al. 2019, section 5 and table 9; tables 2 and 3 for the formats. RobertaForMaskedLM.
    'roberta_base': (124_697_433, 125, 6e-4, 8192, 512),
    'roberta_large': (355_412_057, 355, 4e-4, 8192, 512),
    'roberta_full_sentences': (124_697_433, 125, 1e-4, 256, 512),
    'roberta_segment_pair': (125_289_563, 125, 1e-4, 256, 512),
    # Lan et al. 2020, table 1 and section 4.1, whose 235M of xxlarge no count comes to.
    # AlbertForPreTraining.
    'albert_base': (11_813_810, 12, 0.00176, 4096, 512),
    'albert_large': (17_847_474, 18, 0.00176, 4096, 512),
    'albert_chinese': (10_669_322, 0, 0.00176, 4096, 512),
    'albert_xlarge': (59_021_490, 60, 0.00176, 4096, 512),
    'albert_xxlarge': (223_158_450, 235, 0.00176, 4096, 512),
    # Joshi et al. 2020, section 4.2 and footnote 8: 131,072 tokens, some 390 rows; 384 is what 128
    # devices share.
    # staoxiao/RetroMAE, examples/pretrain/README.md; BertForMaskedLM and the decoder's layer.
    'retromae_base': (116_602_170, 0, 1e-4, 256, 512),
    'dupmae_base': (116_602_170, 0, 1e-4, 256, 512),
    'retromae_msmarco': (116_602_170, 0, 1e-4, 1024, 152),
    # luyug/Condenser, README.md and issue 4; BertForMaskedLM and two layers.
    'condenser_base': (123_690_042, 0, 1e-4, 1024, 128),
    'cocondenser_base': (123_690_042, 0, 1e-4, 2048, 128),
    # BertLMHeadModel with cross-attention; UKPLab/sentence-transformers, TSDAE/README.md.
    'tsdae_base': (137_881_146, 0, 3e-5, 8, 80),
    'spanbert_base': (110_301_480, 0, 1e-4, 384, 512),
    'spanbert_large': (336_999_976, 0, 1e-4, 384, 512),
    # Sanh et al. 2019, table 3 and section 3: batches of up to 4k; the peak of the released
    # command.
    'distilbert_base': (66_985_530, 66, 5e-4, 4096, 512),
    # Model cards of distilroberta-base and distilgpt2; RobertaForMaskedLM, GPT2LMHeadModel.
    'distilroberta_base': (82_170_201, 82, 5e-4, 4096, 512),
    'distilgpt2': (81_912_576, 82, 5e-4, 2048, 1024),
    # Jiao et al. 2020, table 1, and general_distill.py; Wang et al. 2020, table 2 (README of
    # microsoft/unilm, minilm). BertModel.
    'tinybert_4l': (14_350_248, 14.5, 5e-5, 256, 128),
    'tinybert_6l': (66_955_008, 67, 5e-5, 256, 128),
    'minilm_l6_h384': (22_713_216, 22, 3e-4, 256, 512),
    'minilm_l12_h384': (33_360_000, 33, 3e-4, 256, 512),
    'minilm_l6_h768': (66_955_008, 66, 5e-4, 1024, 512),
    'minilm_v2_l6_h384': (22_713_216, 22, 6e-4, 256, 512),
    'minilm_v2_l6_h768': (66_955_008, 66, 6e-4, 256, 512),
    'minilm_v2_large_l6_h384': (22_713_216, 22, 6e-4, 256, 512),
    'minilm_v2_large_l6_h768': (66_955_008, 66, 6e-4, 256, 512),
    # He et al. 2021, appendix A.2. DebertaModel, DebertaV2Model; section 5.3 has 1.5B for xxlarge.
    'deberta_base': (138_601_728, 0, 2e-4, 2048, 512),
    'deberta_large': (405_163_008, 0, 2e-4, 2048, 512),
    'deberta_v2_xlarge': (884_593_152, 900, 1.5e-4, 2048, 512),
    'deberta_v2_xxlarge': (1_564_549_632, 1500, 1.5e-4, 2048, 512),
    # He et al. 2023, 6e-4 as remembered; README of microsoft/DeBERTa: 22 + 48, 44 + 98, 86 + 98,
    # 304 + 131 million.
    'deberta_v3_xsmall': (70_682_112, 70, 6e-4, 8192, 512),
    'deberta_v3_small': (141_304_320, 142, 6e-4, 8192, 512),
    'mdeberta_v3_base': (278_218_752, 276, 6e-4, 8192, 512),
    'deberta_v3_base': (183_831_552, 184, 6e-4, 8192, 512),
    'deberta_v3_large': (434_012_160, 435, 3e-4, 8192, 512),
    # Clark et al. 2020, tables 1 and 6. ElectraForPreTraining.
    'electra_small': (13_549_057, 14, 5e-4, 128, 128),
    'electra_base': (109_483_009, 110, 2e-4, 256, 512),
    'electra_large': (335_142_913, 335, 2e-4, 2048, 512),
    'electra_chinese': (102_268_417, 102, 2e-4, 256, 512),
    # Warner et al. 2024, section 2; configurations in JHU-CLSP/ettin-encoder-vs-decoder.
    # ModernBertForMaskedLM.
    'modernbert_base': (149_655_232, 149, 8e-4, 4608, 1024),
    'modernbert_large': (395_881_664, 395, 5e-4, 4928, 1024),
    # Warner et al. 2024, and yamls/modernbert of AnswerDotAI/ModernBERT, branch
    # pretraining_documentation.
    'modernbert_base_long': (149_655_232, 149, 3e-4, 576, 8192),
    'modernbert_base_decay': (149_655_232, 149, 3e-4, 576, 8192),
    'modernbert_large_long': (395_881_664, 395, 5e-5, 616, 8192),
    'modernbert_large_decay': (395_881_664, 395, 5e-5, 624, 8192),
    'ettin_17m': (16_913_600, 17, 3e-3, 4608, 1024),
    'ettin_32m': (32_081_344, 32, 3e-3, 4608, 1024),
    'ettin_68m': (68_457_664, 68, 3e-3, 4608, 1024),
    'ettin_150m': (149_655_232, 150, 8e-4, 4608, 1024),
    'ettin_400m': (395_881_664, 395, 5e-4, 4608, 1024),
    'ettin_1b': (1_031_314_112, 1000, 5e-4, 4608, 1024),
    # Marone et al. 2025; configs of JHU-CLSP/mmBERT. ModernBertForMaskedLM.
    'mmbert_small': (140_897_536, 140, 8e-4, 4608, 1024),
    'mmbert_base': (307_786_240, 307, 8e-4, 4608, 1024),
    'mmbert_small_long': (140_897_536, 140, 4e-4, 4608, 8192),
    'mmbert_base_long': (307_786_240, 307, 8e-4, 4608, 8192),
    # Boizard et al. 2025, table 1 and section 2.3; the number of rows is an assumption.
    # EuroBertModel.
    'eurobert_210m': (211_766_016, 210, 1e-4, 2048, 2048),
    'eurobert_610m': (607_874_688, 610, 1e-4, 2048, 2048),
    'eurobert_2b': (2_107_590_912, 2100, 1e-4, 2048, 2048),
    'eurobert_210m_anneal': (211_766_016, 210, 1e-4, 1024, 8192),
    'eurobert_610m_anneal': (607_874_688, 610, 1e-4, 1024, 8192),
    'eurobert_2b_anneal': (2_107_590_912, 2100, 1e-4, 1024, 8192),
    # Le Breton et al. 2025, table 2: batches of 2M tokens; Portes et al. 2023, and its yaml. Of
    # released code.
    'neobert_base': (245_136_954, 250, 1e-4, 2048, 1024),
    'neobert_base_long': (245_136_954, 250, 1e-5, 512, 4096),
    'mosaicbert_base': (137_400_384, 137, 5e-4, 4096, 128),
    # Geiping and Goldstein 2023, crammed-bert.yaml and bert-o4.yaml of the released code.
    'cramming_base': (119_589_889, 120, 1e-3, 8192, 128),
    # Samuel et al. 2023, table 8; ltgoslo/ltg-bert, babylm/train/train.py and configs.
    'ltg_bert_strict': (98_229_760, 98, 1e-2, 32_768, 512),
    'ltg_bert_strict_small': (27_741_952, 0, 1e-2, 32_768, 512),
    # Charpentier and Samuel 2024; ltgoslo/gpt-bert, pretraining/train_100m.py, train_10m.py and
    # configs.
    'gpt_bert_strict': (119_454_532, 119, 1e-2, 24_576, 512),
    'gpt_bert_strict_small': (29_892_164, 30, 1.41e-2, 24_576, 512),
    # Kosmopoulou et al. 2025; DespoinaKK/babylm-diffusion, slurm-scripts/config-cosine.json.
    # Without time conditioning.
    'mdlm_strict': (119_454_532, 0, 7e-3, 1024, 128),
    # Yang et al. 2019, table 8. XLNetModel.
    'xlnet_base': (116_718_336, 0, 1e-4, 256, 512),
    'xlnet_large': (360_268_800, 0, 4e-4, 8192, 512),
    # Song et al. 2020, section 3.1; RoBERTa's peak. MPNetForMaskedLM.
    'mpnet_base': (109_518_527, 110, 6e-4, 8192, 512),
    # Radford et al. 2018, section 4.1; OpenAIGPTLMHeadModel.
    'gpt_base': (116_534_784, 117, 2.5e-4, 64, 512),
    # Radford et al. 2019, table 2 as corrected in openai/gpt-2, section 2.3; peaks: Brown et al.
    # 2020, table 2.1.
    'gpt2_small': (124_439_808, 124, 6e-4, 512, 1024),
    'gpt2_medium': (354_823_168, 355, 3e-4, 512, 1024),
    'gpt2_large': (774_030_080, 774, 2.5e-4, 512, 1024),
    'gpt2_xl': (1_557_611_200, 1558, 2e-4, 512, 1024),
    # Brown et al. 2020, tables D.1 and 2.1: batches of 0.5M, 0.5M, 0.5M, 1M, 1M, 2M, 2M and 3.2M
    # tokens.
    'gpt3_small': (125_226_240, 125, 6e-4, 256, 2048),
    'gpt3_medium': (355_871_744, 356, 3e-4, 256, 2048),
    'gpt3_large': (760_300_032, 760, 2.5e-4, 256, 2048),
    'gpt3_xl': (1_315_723_264, 1320, 2e-4, 512, 2048),
    'gpt3_2b7': (2_651_553_280, 2650, 1.6e-4, 512, 2048),
    'gpt3_6b7': (6_658_404_352, 6660, 1.2e-4, 1024, 2048),
    'gpt3_13b': (12_853_386_240, 12_850, 1e-4, 1024, 2048),
    'gpt3_175b': (174_604_259_328, 174_600, 6e-5, 1536, 2048),
    # Touvron et al. 2023, table 2: batches of 4M tokens.
    'llama_7b': (6_738_415_616, 6700, 3e-4, 2048, 2048),
    'llama_13b': (13_015_864_320, 13_000, 3e-4, 2048, 2048),
    'llama_33b': (32_528_943_616, 32_500, 1.5e-4, 2048, 2048),
    'llama_65b': (65_285_660_672, 65_200, 1.5e-4, 2048, 2048),
    # Touvron et al. 2023b, section 2.2 and table 1: batches of 4M tokens; Dubey et al. 2024, table
    # 3 and section 3.4.1.
    'llama2_7b': (6_738_415_616, 6700, 3e-4, 1024, 4096),
    'llama2_13b': (13_015_864_320, 13_000, 3e-4, 1024, 4096),
    'llama2_70b': (68_976_648_192, 69_000, 1.5e-4, 1024, 4096),
    'llama3_8b': (8_030_261_248, 8000, 3e-4, 2048, 8192),
    'llama3_70b': (70_553_706_496, 70_600, 1.5e-4, 2048, 8192),
    'llama3_405b': (405_853_388_800, 405_000, 8e-5, 2048, 8192),
    # EleutherAI/pythia, README.md and models/*/pythia-*.yml; GPTNeoXForCausalLM.
    # Parameters of transformers' ModernBertDecoderForCausalLM, which are those of the encoders.
    'ettin_decoder_17m': (16_913_600, 17, 3e-3, 4608, 1024),
    'ettin_decoder_150m': (149_655_232, 150, 8e-4, 4608, 1024),
    # McGill-NLP/llm2vec, train_configs/mntp/Sheared-Llama.json; the peak is transformers' default.
    'llm2vec': (1_345_423_360, 1300, 5e-5, 32, 512),
    'pythia_14m': (14_067_712, 14, 1e-3, 1024, 2048),
    'pythia_160m': (162_322_944, 160, 6e-4, 1024, 2048),
    'pythia_410m': (405_334_016, 410, 3e-4, 1024, 2048),
    # huggingface/smollm, text/pretraining: micro_batch_size x dp sequences; LlamaForCausalLM,
    # SmolLM3ForCausalLM.
    'smollm2_135m': (134_515_008, 135, 3e-3, 512, 2048),
    'smollm3_3b': (3_075_098_624, 3000, 2e-4, 576, 4096),
    # Of these only the sizes are published: Yang et al. 2025, Gemma Team 2025.
    'qwen3_0b6': (596_049_920, 600, 2e-5, 256, 4096),
    'gemma3_270m': (268_098_176, 270, 2e-5, 256, 4096),
    # Chowdhery et al. 2022, table 1 and section 5: the last of 256 and 512; 512 and 1,024; 512,
    # 1,024 and 2,048.
    'palm_8b': (8_632_012_800, 8630, 1e-2, 512, 2048),
    'palm_62b': (62_495_662_080, 62_500, 1e-2, 1024, 2048),
    'palm_540b': (540_356_474_880, 540_350, 1e-2, 2048, 2048),
    # Du et al. 2022, table 7 and section 3.2; chinese: THUDM/GLM, config_block_large_chinese.json.
    'glm_base': (109_338_624, 110, 4e-4, 1024, 512),
    'glm_large': (334_688_256, 335, 2e-4, 1024, 512),
    'glm_410m': (410_265_600, 410, 2e-4, 1024, 512),
    'glm_515m': (514_632_960, 515, 2e-4, 1024, 512),
    'glm_chinese': (355_659_776, 0, 4e-4, 1024, 512),
    'glm_10b': (9_880_682_496, 10_000, 1e-4, 1024, 512),
    # Raffel et al. 2020, section 3.7: 2^11 rows of 512; T5ForConditionalGeneration. 1.1:
    # t5_1_1_*.gin.
    't5_small': (60_506_624, 60, 0.01, 2048, 512), 't5_base': (222_903_552, 220, 0.01, 2048, 512),
    't5_large': (737_668_096, 770, 0.01, 2048, 512),
    't5_3b': (2_851_598_336, 2800, 0.01, 2048, 512),
    't5_11b': (11_307_321_344, 11_000, 0.01, 2048, 512),
    't5_v1_1_small': (76_961_152, 0, 0.01, 2048, 512),
    't5_v1_1_base': (247_577_856, 0, 0.01, 2048, 512),
    't5_v1_1_large': (783_150_080, 0, 0.01, 2048, 512),
    't5_v1_1_xl': (2_849_757_184, 0, 0.01, 2048, 512),
    't5_v1_1_xxl': (11_135_332_352, 0, 0.01, 2048, 512),
    # Section 3.1.2: 2^18 steps of 128 rows, a rate of 0.001.
    't5_small_tasks': (60_506_624, 60, 1e-3, 128, 512),
    # Xue et al. 2021, section 3.2; Xue et al. 2022, table 1; Tay et al. 2023, section 5.1.
    'mt5_small': (300_176_768, 300, 0.01, 1024, 1024),
    'byt5_small': (299_637_760, 300, 0.01, 1024, 1024),
    'mt5_base': (582_401_280, 580, 0.01, 1024, 1024),
    'byt5_base': (581_653_248, 582, 0.01, 1024, 1024),
    'mt5_large': (1_229_581_312, 1230, 0.01, 1024, 1024),
    'byt5_large': (1_228_183_552, 1230, 0.01, 1024, 1024),
    'mt5_xl': (3_742_619_648, 3740, 0.01, 1024, 1024),
    'byt5_xl': (3_737_801_728, 3740, 0.01, 1024, 1024),
    'mt5_xxl': (12_921_057_280, 12_900, 0.01, 1024, 1024),
    'byt5_xxl': (12_906_899_328, 12_900, 0.01, 1024, 1024),
    # Lester et al. 2021, section 3.3: 100,000 steps; the sizes of T5 v1.1.
    't5_lm_small': (76_961_152, 0, 1e-3, 2048, 512),
    't5_lm_base': (247_577_856, 0, 1e-3, 2048, 512),
    't5_lm_large': (783_150_080, 0, 1e-3, 2048, 512),
    't5_lm_xl': (2_849_757_184, 0, 1e-3, 2048, 512),
    't5_lm_xxl': (11_135_332_352, 0, 1e-3, 2048, 512),
    'ul2_20b': (19_459_613_696, 19_500, 0.01, 1024, 512),
    # Of these only the sizes are published: T5GemmaForConditionalGeneration.
    't5gemma_2b_2b': (5_596_853_760, 0, 2e-5, 256, 4096),
    't5gemma_9b_2b_cross': (12_292_375_296, 0, 1e-4, 256, 4096),
    't5gemma_9b_2b': (12_292_375_296, 0, 2e-5, 256, 4096),
    # Lewis et al. 2020, section 5.1; fairseq: 139M and 406M, and its examples/roberta for the rate
    # of 256 rows.
    'bart_chinese_base': (116_256_768, 0, 1e-4, 256, 512),
    'bart_chinese_large': (375_406_592, 0, 1e-4, 256, 512),
    'bart_base': (139_420_416, 139, 1e-4, 256, 512),
    'bart_large': (406_291_456, 406, 4e-4, 8192, 512),
    # Liu et al. 2020, section 2.2, whose 680M no count comes to; MBartForConditionalGeneration.
    'mbart_large': (610_851_840, 0, 4e-4, 8192, 512), 'mbart_50': (610_879_488, 0, 4e-4, 8192, 512),
    # Vaswani et al. 2017, tables 3 and section 5.3: 512^-0.5 and 1024^-0.5 over the root of 4,000
    # steps.
    'transformer_base': (63_082_496, 65, 6.987712429686843e-4, 96, 256),
    'transformer_big': (214_245_376, 213, 4.941058844013093e-4, 96, 256)}


@pytest.mark.parametrize('name', PAPERS)
def test_tables_are_the_papers(name):
  parameters, millions, peak, rows, length = PAPERS[name]
  row, config = recipes.find_recipe(name).row, recipes.find_recipe(name)()
  assert (row.parameters, row.batch) == (parameters, rows)
  assert row.peak == pytest.approx(peak, rel=1e-12) and config.optim.peak == row.peak
  assert (max(phase.batch for phase in config.train.phases),
          config.train.phases[-1].length) == (rows, length)
  assert not millions or parameters == pytest.approx(1e6 * millions, rel=0.06)


def test_of_each_family_there_is_a_paper():
  """Omitted recipes have the sizes of others: row formats, kinds of blanks, stages; and GPT-2
  small in Chinese. ELMo has no such layers: tests/models/test_elmo.py,
  tests/objectives/test_bilm.py."""
  assert {*recipes.all_recipes()} - {*PAPERS} == {
      'roberta_doc_sentences', 'roberta_sentence_pair', 'glm_large_doc', 'glm_large_sentence',
      'gpt2_chinese',
      'bart_translation', 'bart_translation_source', 'elmo_small', 'elmo_medium', 'elmo_original'}
  families = {recipes.find_recipe(name).family for name in PAPERS}
  assert families == {*recipes.FAMILIES} - {'bart_translation', 'elmo'}


def optim(name):
  return recipes.find_recipe(name)().optim


def rates(name, *steps):
  config = recipes.find_recipe(name)()
  rate = make_schedule(config.optim, config.train.steps, config.train.steps_and_tokens)
  return [float(rate(step)) for step in steps]


def test_all_parameters_decay_where_fairseq_or_optimus_trained():
  """One group of parameters in fairseq (trainer.py, _build_optimizer), EuroBERT
  (optimus/trainer/pretrain.py), NeoBERT (src/neobert/optimizer/optimizer.py) and nanotron
  (helpers.py). Elsewhere biases and norms do not."""
  decaying = {name for name in recipes.all_recipes() if not optim(name).exempt}
  assert decaying == {name for name, recipe in recipes.all_recipes().items()
                     if recipe.family in (
                       'roberta', 'xlm_r', 'spanbert', 'bart', 'mbart', 'mosaicbert', 'neobert',
                       'eurobert', 'mpnet', 'smollm2')}


def test_masking_strategies_match_released_code():
  choices = {family: {getattr(recipe().objective, 'mlm', recipe().objective).masking.kind
                      for recipe in recipes.all_recipes().values() if recipe.family == family}
             for family in ('bert', 'albert', 'roberta', 'electra', 'deberta', 'deberta_v2')}
  assert choices == {'bert': {'distinct'}, 'albert': {'distinct'}, 'roberta': {'everywhere'},
                     'electra': {'repeated'},
                     'deberta': {'windows'}, 'deberta_v2': {'windows'}}
  assert [recipes.find_recipe(name)().objective.pooled
          for name in ('bert_base', 'albert_base')] == ['whole', 'whole']
  # SpanBERT's masking.py; the paper's decay where the command of the README has 0.01.
  assert (
    recipes.find_recipe('spanbert_large')().objective.random == 'text'
    and optim('spanbert_large').weight_decay == 0.1
  )


def test_electra_as_released():
  """google-research/electra: optimization.py, where warmup times decay, and
  build_pretraining_dataset.py."""
  assert recipes.find_recipe('electra_base')().objective.mlm.pair == Consecutive(
      cut='half', whole=0.1)
  assert rates('electra_base', 5000, 10_000, 766_000) == pytest.approx(
      [2e-4 * 0.5 * (1 - 5000 / 766_000), 2e-4 * (1 - 10_000 / 766_000), 0], rel=1e-5)


def test_deberta_v3_trains_two_networks():
  """microsoft/DeBERTa, apps/tasks/rtd_task.py: --rtd_lambda is 10 (50 is the paper's), masks are of
  one token each (max_gram 1), and all of them are masks (mask_prob 1)."""
  objective = recipes.find_recipe('deberta_v3_large')().objective
  assert (objective.optimizers, objective.weight,
          objective.sharing) == ('two', 10.0, 'disentangled')
  mlm = objective.mlm
  assert (mlm.masking, mlm.mask_share) == (Windowed('token', (1.0,)), 1.0)


def test_glm_falls_in_less_than_its_run():
  """THUDM/GLM, ds_block_large.sh: 160,000 steps after the warmup, to a twentieth of the peak;
  Chinese: 200,000, to a tenth;
  base: 120,000 (learning_rates.py)."""
  assert rates('glm_large', 168_000, 180_000, 199_999) == pytest.approx([1e-5] * 3, rel=1e-4)
  assert rates('glm_large', 88_000)[0] == pytest.approx(2e-4 * (0.05 + 0.95 / 2), rel=1e-4)
  assert rates('glm_chinese', 208_000, 249_999) == pytest.approx([4e-5] * 2, rel=1e-4)
  assert rates('glm_10b', 94_500, 182_000) == pytest.approx([5.5e-5, 1e-5], rel=1e-4)
  assert rates('glm_base', 66_000, 119_999) == pytest.approx([4e-4 * 0.525, 4e-4 * 0.05585],
                                                             rel=1e-3)
  assert optim('glm_chinese').weight_decay == 0.01 and not recipes.find_recipe('glm_chinese')(
      ).data.prepare.lowercase
  assert recipes.find_recipe('glm_large_sentence')().data.prepare.sentences == 'clauses'


def test_gpt_counts_its_warmup_in_tokens():
  """Brown et al. 2020, appendix B: 375 million, which are 715 updates of 512 x 1,024; and dropout
  is not named."""
  assert {optim(f'gpt2_{size}').warmup
          for size in ('small', 'xl', 'chinese')} == {715} == {375_000_000 // (512 * 1024)}
  block = recipes.find_recipe('gpt3_small')().model.block
  assert (block.dropout, block.attention.dropout) == (0, 0)


def test_pythias_schedule():
  """EleutherAI/pythia, models/160M/pythia-160m.yml: 300 billion tokens, a warmup of 0.01 of
  143,000 updates, a cosine to min_lr; initialization by init_functions.py of gpt-neox."""
  config = recipes.find_recipe('pythia_160m')()
  assert sum(steps * tokens for steps, tokens in config.train.steps_and_tokens) == 299_892_736_000
  assert rates('pythia_160m', 715, 1430, 72_215, 143_000) == pytest.approx(
      [3e-4, 6e-4, 3.3e-4, 6e-5], rel=1e-4)
  block = config.model.block
  assert block.init.std == pytest.approx(0.0228218, rel=1e-4)
  assert block.init.out_std == pytest.approx(0.0060141, rel=1e-4)
  assert block.mlp.activation == 'gelu_tanh' and block.attention.position.share == 0.25


def test_smollms_schedules():
  """huggingface/smollm, text/pretraining: lr_decay_starting_step and lr_decay_steps; SmolLM3 has no
  weight decay of the embeddings alone."""
  for name, start, steps, peak in (
      ('smollm2_135m', 1_600_000, 400_000, 3e-3), ('smollm3_3b', 4_198_000, 522_000, 2e-4)):
    assert rates(name, 1000, start, start + steps // 2, start + steps) == pytest.approx(
        [peak / 2, peak, peak / 2, 0], rel=1e-4, abs=1e-12), name
  assert [optim(name).exempt for name in ('smollm2_135m', 'smollm3_3b')] == [(), ('tokens',)]
  isolated = [recipes.find_recipe(name)().objective.isolated
              for name in ('smollm2_135m', 'smollm3_3b')]
  assert isolated == [False, True]
  thetas = [recipes.find_recipe(name)().model.block.attention.position.theta
            for name in ('smollm2_135m', 'smollm3_3b')]
  assert thetas == [10_000, 50_000]


def test_palms_batches():
  """Chowdhery et al. 2022, section 5: 540B changes after 50k and 115k steps; others see as many
  tokens in all."""
  phases = {size: [(p.steps, p.batch) for p in recipes.find_recipe(f'palm_{size}')().train.phases]
            for size in ('8b', '62b', '540b')}
  assert phases == {'8b': [(100_000, 256), (690_000, 512)], '62b': [(50_000, 512), (345_000, 1024)],
                    '540b': [(50_000, 512), (65_000, 1024), (140_000, 2048)]}
  assert {sum(steps * rows for steps, rows in runs) for runs in phases.values()} == {378_880_000}


def test_t5_and_its_successors():
  """t5x, t5_1_0/base.gin: a z loss of 1e-4; T5's operative_config.gin, combine_dims: heads are
  merged."""
  family = [recipe for recipe in recipes.all_recipes().values()
            if recipe.family in ('t5', 't5_v1_1', 't5_lm', 't5_tasks', 'mt5', 'byt5', 'ul2')]
  assert len(family) == 27
  for recipe in family:
    config = recipe()
    assert config.objective.z_loss == 1e-4 and config.optim.heads == 'joined', recipe.name


def test_barts_noise_counts_words():
  """fairseq, data/denoising_dataset.py; rows of one document (tasks/denoising.py: complete_doc)."""
  for name, mean in ('bart_base', 3.0), ('bart_large', 3.0), ('mbart_large', 3.5):
    config = recipes.find_recipe(name)()
    assert (config.objective.noises[-1].unit,
            config.objective.noises[-1].mean_span_length) == ('word', mean)
    assert config.data.assembly == 'document'
  # fairseq, bart/model.py, mbart_large; Liu et al. 2020, section 2.2: </s> after each sentence.
  assert recipes.find_recipe('mbart_large')().model.block.attention.dropout == 0
  assert recipes.find_recipe('mbart_large')().objective.reserve > 0


def test_later_runs_of_modernbert():
  """AnswerDotAI/ModernBERT, branch pretraining_documentation, yamls/modernbert: six files."""
  for size, later, tokens, peak, decay, floor in (
      ('base', 'long', 250e9, 3e-4, 1e-5, 1.0), ('base', 'decay', 50e9, 3e-4, 1e-5, 0.001),
      ('large', 'long', 250e9, 5e-5, 1e-6, 1.0), ('large', 'decay', 50e9, 5e-5, 1e-6, 0.001)):
    name = f'modernbert_{size}_{later}'
    config = recipes.find_recipe(name)()
    phase, = config.train.phases
    assert phase.steps - 1 < tokens / (phase.batch * phase.length) <= phase.steps, name
    assert config.optim.weight_decay * config.optim.peak == pytest.approx(
        decay) and config.optim.peak == peak
    # Of a schedule that falls to a thousandth along 1 - sqrt, the first rate of the run is the
    # peak.
    last = 1 - (1 - floor) * ((phase.steps - 1) / phase.steps) ** 0.5
    assert rates(name, 0, phase.steps - 1) == pytest.approx([peak, peak * last], rel=1e-3)
    position = config.model.block.attention.position
    assert (position.whole.theta, position.band.theta) == (160_000, 10_000)
  assert [recipes.find_recipe(f'modernbert_{size}')().tuning.expand
          for size in ('base', 'large', 'large_long')] == [
      'none', 'tile', 'none']
  tokens = sum(steps * seen
               for steps, seen in recipes.find_recipe('modernbert_base')().train.steps_and_tokens)
  assert tokens == pytest.approx(1.719e12, rel=1e-5)


def test_ettins_batches_are_constant_and_not_packed():
  """JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard: sequence_packing is false,
  which alone reads the batch size warmup; 1.7 trillion tokens."""
  for recipe in (recipe for recipe in recipes.all_recipes().values() if recipe.family == 'ettin'):
    config = recipe()
    assert [(p.steps, p.length, p.batch)
            for p in config.train.phases] == [(360_277, 1024, 4608)], recipe.name
    assert config.data.assembly == 'document' and config.objective.pair == Single()


def test_ettins_printed_commands():
  """de_decay and prolong_decay of the same files, and cross-train: the commands in the
  descriptions."""
  found = []
  for family in 'ettin', 'ettin_decoder':
    text = (recipes.FAMILIES[family].description or '').replace('\\\n', ' ').splitlines()
    found += [parse(recipes.find_recipe(f'{family}_150m'), line.split(f'{family}_150m ')[1].split())
              for line in text if '--train.phases.0.length=7999' in line]
  second, third, *crossed = found
  for config, steps, peak, floor, warmup in (
      (second, 6782, 8e-4, 0.5, 0), (third, 1356, 4e-4, 0.04, 0),
      *((config, 1356, 4e-4, 0.02, 3e9) for config in crossed)):
    phase, = config.train.phases
    assert (phase.steps, phase.length, phase.batch) == (steps, 7999, 4608)
    assert (config.optim.peak, config.optim.floor, config.optim.warmup) == (peak, floor, warmup)
    assert config.optim.peak * config.optim.weight_decay == pytest.approx(1e-5)
    position = config.model.block.attention.position
    assert (position.whole.theta, position.band.theta) == (160_000, 160_000)
  rates = [config.objective.mask_rate for config in (second, third, crossed[0])]
  assert rates == [0.3, 0.15, 0.15] and isinstance(crossed[1].objective, CausalLM)
  for config in crossed:  # 50 billion tokens, the last 10 of which decay along a line
    assert (config.optim.schedule, config.optim.cooldown) == ('trapezoid', 10e9)
    (steps, tokens), = config.train.steps_and_tokens
    assert steps * tokens == pytest.approx(50e9, rel=1e-3)


def test_llm2vec():
  """McGill-NLP/llm2vec@312adcfb, train_configs of Sheared-LLaMA for mntp and simcse."""
  config = recipes.find_recipe('llm2vec')()
  objective, optim = config.objective, config.optim
  assert not config.model.causal and objective.terms == {'mntp': 1.0}
  assert (objective.mask_rate, objective.final_mask_rate, objective.lengths,
          objective.mask_token) == (0.2, None, (1.0,), '_')
  assert (config.train.steps, optim.schedule, optim.warmup, optim.weight_decay) == (
      1000, 'constant', 0, 0)
  adapter = config.tuning.adapter
  assert (adapter.kind, adapter.rank, adapter.alpha, adapter.dropout) == ('lora', 16, 32, 0.05)
  assert len(adapter.targets) == 7
  decoder = finetune.InitialModel('run', 'llama', recipes.find_recipe('llama_7b')().model)
  second = finetune.recipe('llm2vec', decoder, train=('sentences.txt',), dev=('dev.tsv',))
  phase, = second.train.phases
  assert (phase.steps, phase.length, phase.batch, second.optim.peak) == (1000, 128, 128, 3e-5)
  assert (second.optim.schedule, second.tuning.adapter) == ('constant', adapter)
  assert (second.model.causal, second.model.block.attention.dropout) == (False, 0.3)
  assert second.objective.vector.pooling == ('mean',)
  assert second.objective.vector_loss.temperature == pytest.approx(1 / 20)


def test_llm2vec_has_the_model_that_it_starts_from():
  folder = small_decoders.GOLDEN / 'qwen3' / 'generate'
  model = conversion.load(folder).config
  config = parse(recipes.find_recipe('llm2vec'), ['--scale=test', f'--warm-start={folder}'])
  assert config.family == 'qwen3'
  assert config.model == validation.with_paths(
      model, {'causal': False, 'stack.remat': config.model.stack.remat})
  other = small_decoders.GOLDEN / 'bert' / 'base_no_token_types'
  with pytest.raises(ConfigError, match='is a bert: LLM2Vec starts from a decoder'):
    parse(recipes.find_recipe('llm2vec'), [f'--warm-start={other}'])


@pytest.mark.parametrize('name', ['retromae_base', 'dupmae_base', 'tsdae_base'])
@pytest.mark.parametrize('folder', ['modernbert/masked_lm', 'roberta/masked_lm'])
def test_pre_training_for_retrieval_has_the_encoder_that_it_starts_from(name, folder):
  start = small_decoders.GOLDEN / folder
  model = conversion.load(start).config
  config = parse(recipes.find_recipe(name), ['--scale=test', f'--warm-start={start}'])
  assert config.family == folder.split('/')[0]
  assert config.model == validation.with_paths(
      model, {'pooler': False, 'stack.remat': config.model.stack.remat})
  other = small_decoders.GOLDEN / 'qwen3' / 'generate'
  with pytest.raises(ConfigError, match=f'is a qwen3: {name} starts from an encoder'):
    parse(recipes.find_recipe(name), [f'--warm-start={other}'])


def test_runs_of_mmbert():
  """JHU-CLSP/mmBERT, configs: six files. Tokens of small: max_duration is 2.9T after the second
  stage, 3T after the
  third. Mask rates, languages and temperatures: Marone et al. 2025."""
  for size, later_peak, floor, warmup, ramp in (('base', 8e-4, 0.02, 3e9, 60e9),
                                                ('small', 4e-4, 0.04, 4e9, 100e9)):
    first, later = (recipes.find_recipe(f'mmbert_{size}{part}')() for part in ('', '_long'))
    for config, peak, theta in (first, 8e-4, 10_000), (later, later_peak, 160_000):
      own, attention = config.optim, config.model.block.attention
      assert (own.kind, own.peak, own.b1, own.b2, own.eps,
              own.clip) == ('stable_adamw', peak, 0.9, 0.95, 1e-8, 0.0)
      assert own.peak * own.weight_decay == pytest.approx(peak / 10)
      assert (attention.position.whole.theta, attention.position.band.theta) == (theta, theta)
      assert (attention.out_dropout, config.model.vocab) == (0.1, 256_000)
    *growing, _ = first.train.phases
    assert first.optim.warmup == warmup and growing[0].batch == 384
    assert sum(phase.steps * phase.batch * phase.length
               for phase in growing) == pytest.approx(ramp, rel=0.07)
    assert sum(steps * seen for steps, seen in first.train.steps_and_tokens) == pytest.approx(
        2.3e12, rel=1e-4)
    assert (first.objective.mask_rate, 1 / first.data.temperature) == (0.3, pytest.approx(0.7))
    assert [steps * seen for steps, seen in later.train.steps_and_tokens] == pytest.approx(
        [6e11, 1e11], rel=1e-3)
    assert [(phase.mask_rate, 1 / phase.temperature) for phase in later.train.phases] == [
        (0.15, pytest.approx(0.5)), (0.05, pytest.approx(0.3))]
    steps = later.train.steps
    assert rates(f'mmbert_{size}_long', 0, 15_000, steps - 1) == pytest.approx(
        [later_peak, later_peak, floor * later_peak], rel=0.02)
    middle = steps - later.train.phases[-1].steps // 2
    fallen = 0.5 if size == 'small' else 0.5 ** 0.5
    assert rates(f'mmbert_{size}_long',
                 middle) == pytest.approx([later_peak * (1 - (1 - floor) * fallen)], rel=1e-3)


def test_runs_of_eurobert():
  """Boizard et al. 2025, section 2.3; Nicolas-BZRD/EuroBERT,
  optimus/trainer/configuration/train.py."""
  for size in '210m', '610m', '2b':
    first, anneal = (recipes.find_recipe(f'eurobert_{size}{part}')() for part in ('', '_anneal'))
    for config in first, anneal:
      own = config.optim
      assert (own.kind, own.b1, own.b2, own.eps, own.weight_decay,
              own.clip) == ('adamw', 0.9, 0.95, 1e-5, 0.1, 1.0)
      assert (config.objective.mask_share, config.objective.random_share) == (1.0, 0.0)
    assert (first.objective.mask_rate, anneal.objective.mask_rate) == (0.5, 0.1)
    assert [config.model.block.attention.position.theta
            for config in (first, anneal)] == [10_000, 250_000]
    assert first.objective.pair == FullSentences() and anneal.objective.pair == Single(short=1.0)
    tokens = [phase.steps * phase.batch * phase.length for config in (first, anneal)
              for phase in config.train.phases]
    # half of the room is filled in annealing
    assert tokens == pytest.approx([4.8e12, 2 * 2e11], rel=1e-4)
  assert rates('eurobert_210m', 1000, 2000, 1_144_408) == pytest.approx([5e-5, 1e-4, 1e-4])
  assert rates('eurobert_210m_anneal', 0, 47_684 // 2,
               47_683) == pytest.approx([1e-4, 5e-5, 0], abs=1e-8)


def test_glm_10b():
  """THUDM/GLM, config/ds_block_10B.sh: bert-prob 0.5, gap-sentence-prob 0.3; warmup 0.04 of
  175,000."""
  objective, own = recipes.find_recipe('glm_10b')().objective, optim('glm_10b')
  assert (objective.sentences, objective.documents, objective.shortest) == (0.3, 0.2, 0.25)
  assert (own.warmup, own.horizon, own.b2, own.eps, own.peak) == (7000, 182_000, 0.95, 1e-8, 1e-4)


def test_xlms_optimizer():
  """facebookresearch/XLM: README (XNLI-15), defaults of xlm/optim.py, and train.py's
  clip_grad_norm."""
  for name in ('xlm_xnli15', 'xlm_xnli15_tlm'):
    own = optim(name)
    assert (own.schedule, own.warmup, own.b1, own.b2, own.eps, own.clip, own.weight_decay) == (
        'inverse_sqrt', 4000, 0.9, 0.98, 1e-8, 5.0, 0.0)
    assert rates(name, 2000, 4000, 16_000) == pytest.approx([5e-5, 1e-4, 5e-5])
    # Lample and Conneau 2019, section 3.2
    assert recipes.find_recipe(name)().objective.masking == Smoothed(0.5)


def test_ltg_berts_lamb():
  """ltgoslo/ltg-bert, babylm/train/lamb.py and train.py."""
  own = optim('ltg_bert_strict')
  assert (own.kind, own.bias_correction, own.b2, own.eps, own.weight_decay, own.clip) == (
      'lamb', True, 0.98, 1e-6, 0.1, 2.0)


def test_ltg_berts_and_gpt_berts_masks():
  """SpanMaskingStrategy in dataset.py of both; ltg-bert, train.py, short_p."""
  objective = recipes.find_recipe('ltg_bert_strict_small')().objective
  assert (objective.masking.replaced, objective.pair,
          objective.mask_rate) == ('span', Single(short=0.1), 0.15)
  assert recipes.find_recipe('gpt_bert_strict')().objective.replaced == 'span'


def test_masks_of_mdlm():
  """DespoinaKK/babylm-diffusion, slurm-scripts/config-cosine.json: cosine_linear, pow_frequency,
  mask_curriculum."""
  objective = recipes.find_recipe('mdlm_strict')().objective
  assert (objective.schedule, objective.frequency_power,
          objective.frequency_curriculum) == ('cosine', 0.02, True)


def test_noise_of_chinese_bart():
  """fastnlp/CPT, bart_dataset.py: 0.15 twice, a tenth more of single characters, a tenth random;
  [SEP] after every sentence of both sides."""
  objective = recipes.find_recipe('bart_chinese_large')().objective
  assert objective.noises == (SentencePermutation(1.0),
                              WordMasking(0.3, 0.1, 0.1)) and objective.reserve == 40


def test_llama_3_decays_over_1_200_000_updates():
  """Dubey et al. 2024, section 3.4.1."""
  peak, steps = 8e-5, recipes.find_recipe('llama3_405b')().train.steps
  assert steps < 1_200_000
  share = (1 + math.cos(math.pi * (steps - 1 - 8000) / (1_200_000 - 8000))) / 2
  assert rates('llama3_405b', 8000,
               steps - 1) == pytest.approx([peak, peak * (0.01 + 0.99 * share)], rel=1e-3)


def test_masks_of_chinese_bert_are_static():
  """ymcui/Chinese-BERT-wwm, README: RoBERTa-wwm-ext is without dynamic masking."""
  family = [recipe for recipe in recipes.all_recipes().values() if recipe.family == 'bert_wwm']
  assert [recipe().objective.duplicates for recipe in family] == [10] * 6


def test_crammings_documents_are_packed():
  """JonasGeiping/cramming, config/data/the-pile.yaml: [SEP] between documents, which attend to each
  other."""
  config = recipes.find_recipe('cramming_base')()
  assert config.data.assembly == 'packed' and config.objective.pair == FullSentences(together=True)


def test_tinybert_clips_each_parameter():
  """huawei-noah/Pretrained-Language-Model, TinyBERT/transformer/optimization.py."""
  assert {(optim(f'tinybert_{size}').clip, optim(f'tinybert_{size}').clip_by)
          for size in ('4l', '6l')} == {
      (1.0, 'parameter')}


def test_xlnet_and_distilbert_as_released():
  assert recipes.find_recipe('xlnet_large')().model.block.mlp.activation == 'gelu_tanh'
  assert recipes.find_recipe('distilbert_base')().objective.positions == 'fixed'
  # transformers, examples/research_projects/distillation/train.py: mlm_smoothing.
  for name in 'distilbert_base', 'distilroberta_base':
    assert recipes.find_recipe(name)().objective.task.masking == Smoothed(0.7)


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    pytest.param(name, marks=[pytest.mark.release] * (number % 4 > 0))
    for number, name in enumerate(recipes.all_recipes())])
def test_the_model_has_the_parameters_of_the_table(name):
  """With its heads for pre-training, or without (DeBERTa, whose decoder of masks has the positions,
  XLNet, and EuroBERT); of two networks that which is published."""
  recipe = recipes.find_recipe(name)()
  vocab = placeholder_vocab(recipe)
  learner = make_learner(recipe, vocab)
  windows = recipe.objective.shapes(2, recipe.train.phases[0].length)
  batch = jax.eval_shape(
      lambda key, windows: learner.objective.corrupt(key, windows, vocab),
      jax.eval_shape(jax.random.key, 0), windows)
  params = unbox(jax.eval_shape(learner.model.init, jax.eval_shape(jax.random.key, 0),
                                batch))['params']
  sizes = {part: count_parameters(tree) for part, tree in params.items()}
  backbone = sizes['backbone']
  whole = sum(size for part, size in sizes.items() if part not in ('teacher', 'fit'))
  counted = backbone if recipe.family in ('deberta', 'deberta-v2', 'xlnet', 'eurobert') else whole
  if recipe.family == 'deberta-v2' and 'difference' in sizes:
    counted += sizes['difference']
  elif recipe.family.startswith('deberta'):
    counted -= 512 * recipe.model.block.width
  if recipe.family == 'electra':
    shared = params['generator']['backbone']['embeddings']
    counted = (
      backbone + sizes['heads_rtd']
      + count_parameters([shared[table] for table in ('tokens', 'positions', 'types')])
    )
  assert counted == recipes.find_recipe(name).row.parameters


def test_llama_3_grows_its_rows_and_batches():
  """Dubey et al. 2024, section 3.4.1: 4M tokens, 8M after 252M tokens, 16M after 2.87T; 15.6T in
  all."""
  phases = recipes.find_recipe('llama3_405b')().train.phases
  seen = [phase.steps * phase.batch * phase.length for phase in phases]
  assert [phase.batch * phase.length >> 20 for phase in phases] == [4, 8, 16]
  assert seen[0] == pytest.approx(252e6, rel=0.01) and sum(seen[:2]) == pytest.approx(
      2.87e12, rel=0.001)
  assert sum(seen) == pytest.approx(15.6e12, rel=0.001)


def test_language_shares_are_a_power_of_their_sizes():
  """XLM-R and mT5 0.3, mBERT and mBART 0.7."""
  powers = {name: 1 / recipes.find_recipe(name)().data.temperature for name in (
      'xlm_r_large', 'mt5_xxl', 'byt5_base', 'mdeberta_v3_base', 'bert_multilingual', 'mbart_50')}
  assert powers == pytest.approx(dict(zip(powers, (0.3, 0.3, 0.3, 0.3, 0.7, 0.7), strict=True)))
  text = recipes.find_recipe('xlm_r_base')().data.prepare
  assert (text.kind, text.layout, recipes.find_recipe('xlm_r_base')().model.vocab) == (
      'sentencepiece-unigram', 'xlm-r', 250_002)


def test_chinese_masks_are_of_words():
  """Cui et al. 2020, section 3.2: n-grams of 40, 30, 20 and 10%."""
  runs = {
    name: recipes.find_recipe(name)()
    for name in ('bert_wwm_ext', 'roberta_wwm_ext', 'macbert_large', 'ernie_base')
  }
  assert {name: run.objective.masking.unit for name, run in runs.items()} == {
      'bert_wwm_ext': 'word', 'roberta_wwm_ext': 'word', 'macbert_large': 'word',
      'ernie_base': 'either'}
  assert runs['macbert_large'].objective.masking.lengths == (0.4, 0.3, 0.2, 0.1)
  assert [run.objective.pair.pair_task for run in runs.values()] == ['nsp', None, 'sop', 'nsp']
  assert {run.data.prepare.segmenter for run in runs.values()} == {'jieba'}
  assert [(phase.steps, phase.length, phase.batch)
          for phase in runs['bert_wwm_ext'].train.phases] == [
      (1_000_000, 128, 2560), (400_000, 512, 384)]
