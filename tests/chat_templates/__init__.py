"""Chat templates in the wire formats of their publishers, written for these tests, and tokenizers with their markers.

Each is the format that the publisher documents for the named family, without what does not touch the markup of messages
(tool schemas, dates).
"""

from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}" + CHATML
QWEN3 = CHATML.replace(
    "<|im_start|>{{ m.role }}\n{{ m.content }}",
    "<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content }}",
)
LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}<|begin_of_text|>{% endif %}<|start_header_id|>"
    "{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{% set ns = namespace(system='') %}<s>{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content + '\n\n' %}{% elif m.role == 'user' %}"
    "[INST] {% if loop.last %}{{ ns.system }}{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
GEMMA = (
    "<bos>{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}"
)
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT.\nReasoning: medium<|end|>{% for m in messages %}"
    "{% if m.role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'tool' %}<|start|>functions.f to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Style:
    """A template, its added tokens, and what it does with a system prompt and tool answers."""

    template: str
    added: tuple[str, ...]
    system: bool = True
    tools: bool = True
    forgeable: bool = False


STYLES = {
    "chatml": Style(CHATML, ("<|im_start|>", "<|im_end|>")),
    "qwen2.5": Style(QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    "qwen3": Style(QWEN3, ("<|im_start|>", "<|im_end|>", "<think>", "</think>")),
    "llama3": Style(LLAMA3, ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "mistral": Style(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")),
    "gemma": Style(GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), system=False, tools=False),
    "phi3": Style(PHI3, ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>")),
    "deepseek": Style(
        DEEPSEEK, ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"), tools=False
    ),
    "harmony": Style(HARMONY, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")),
    "zephyr": Style(ZEPHYR, ("<s>", "</s>"), forgeable=True),
    "llama2": Style(LLAMA2, ("<s>", "</s>"), system=False, tools=False, forgeable=True),
}


def tokenizer_of(style: Style) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, trained on a few lines, with the style's added tokens and template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(style.added),
        show_progress=False,
    )
    lines = ["user\n", "assistant\n", "system\n", "What is the weather like in Paris today?\n\n", "Thank you, that helps. "]
    bpe.train_from_iterator(lines * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=style.template)
