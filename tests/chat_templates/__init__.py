"""Chat templates in the wire formats of their publishers, written for these tests, and tokenizers with their markers.

Each is the format that the publisher documents for the named family, without what does not touch the markup of messages
(tool schemas, dates).
"""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
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
QWEN3_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen3, SmolLM3's tool calls: a tool's answer is a user message that begins with an added token."""
NAMED_TOOLS = QWEN3_TOOLS.replace(
    "{{ m.content }}\n</tool_response>", '{"name": "{{ m.name }}", "content": {{ m.content | tojson }}}\n</tool_response>'
)
TOOLS_IN_WORDS = QWEN3_TOOLS.replace(
    "\n<tool_response>\n{{ m.content }}\n</tool_response>", "\nTool {{ m.name }} returned: {{ m.content }}"
)
TOOLS_AS_USERS = QWEN3_TOOLS.replace(
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}",
    "<|im_start|>user\n{{ m.content }}<|im_end|>\n",
)
assert "<tool_response>" not in TOOLS_AS_USERS
"""Nothing in a tool's answer differs from a user's message."""
OPENCHAT = (
    "<s>{% for m in messages %}{{ {'user': 'GPT4 Correct User: ', 'tool': 'GPT4 Correct User: ',"
    " 'system': 'GPT4 Correct System: ', 'assistant': 'GPT4 Correct Assistant: '}[m.role] }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}<|end_of_turn|>"
    "{% endfor %}{% if add_generation_prompt %}GPT4 Correct Assistant:{% endif %}"
)
"""As tools-as-users; and it prints a list of parts as a Python value."""
VICUNA = (
    OPENCHAT.replace("GPT4 Correct ", "")
    .replace("User: ", "USER: ")
    .replace("Assistant:", "ASSISTANT:")
    .replace("<|end_of_turn|>", "{{ '</s>' if m.role == 'assistant' else '\n' }}")
)
BAICHUAN = (
    "{% for m in messages %}{{ {'user': '<reserved_106>', 'tool': '<reserved_106>', 'assistant': '<reserved_107>'}[m.role]"
    " if m.role != 'system' else '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<reserved_107>{% endif %}"
)
HERMES = CHATML.replace("<|im_start|>user\n<tool_response>", "<|im_start|>tool\n<tool_response>")
LLAMA31 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ strftime_now('%d %b %Y') }}\n\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}<|eot_id|>"
    "{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'tool' %}"
    "<|start_header_id|>ipython<|end_header_id|>\n\n{{ {'output': m.content} | tojson }}<|eot_id|>"
    "{% elif m.tool_calls %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if tools and m.role == 'user' and loop.index <= 2 %}Functions: {{ tools | tojson }}\n\n{% endif %}"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}<s>{% for m in rest %}"
    "{% if m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}{% if m.tool_calls[0].id | length != 9 %}{{ raise_exception('invalid id') }}{% endif %}"
    '[TOOL_CALLS][{"name": "{{ m.tool_calls[0].function.name }}", "id": "{{ m.tool_calls[0].id }}"}]</s>'
    "{% elif m.role == 'assistant' %}{{ m.content | trim }}</s>"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
MISTRAL7 = (
    MISTRAL3.replace(
        "<s>{% for m in rest %}",
        "<s>{% if system is defined %}[SYSTEM_PROMPT]{{ system }}[/SYSTEM_PROMPT]{% endif %}{% for m in rest %}",
    )
    .replace("{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}", "")
    .replace(
        '{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}',
        "{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}",
    )
)
DEEPSEEK3 = (
    "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}<｜Assistant｜><｜tool▁calls▁begin｜>{{ m.tool_calls[0].function.name }}"
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>"
    "{% elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<｜Assistant｜><think>\n{% endif %}"
)
GLM4 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n{{ m.content }}"
    "{% elif m.tool_calls %}<|assistant|>{{ m.tool_calls[0].function.name }}\n{}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM45 = GLM4.replace("<|observation|>\n{{ m.content }}", "<|observation|>\n<tool_response>\n{{ m.content }}\n</tool_response>")
GRANITE3 = (
    "{% for m in messages %}<|start_of_role|>{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>"
    "{% for c in m.tool_calls %}<|tool_call|>{{ c.function.name }}{% endfor %}{{ m.content }}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
GRANITE4 = GRANITE3.replace("'tool_response' if", "'user' if").replace(
    "{{ m.content }}<",
    "{% if m.role == 'tool' %}\n<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}{% endif %}<",
)
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
PHI4_MINI = PHI3.replace("<|{{ m.role }}|>\n", "<|{{ 'tool_response' if m.role == 'tool' else m.role }}|>").replace(
    "<|end|>\n", "<|end|>"
)
GEMMA_TOOLS = (
    "<bos>{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role in ['user', 'tool']) != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n{% if loop.first %}{{ first }}{% endif %}"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content | trim }}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
COMMAND_R = (
    "<BOS_TOKEN>{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if m.role == 'tool' %}<|SYSTEM_TOKEN|><results>\nDocument: 0\n{{ m.content }}\n</results>"
    "{% elif m.role == 'assistant' %}<|CHATBOT_TOKEN|>{{ m.content }}{% elif m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}"
    "{% else %}<|SYSTEM_TOKEN|>{{ m.content }}{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
NEMOTRON = (
    "<SPECIAL_10>System\n{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}\n"
    "{% for m in messages %}{% if m.role == 'user' %}<SPECIAL_11>User\n{{ m.content }}\n"
    "{% elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<SPECIAL_11>User\n<TOOL_RESPONSE>["
    "{% else %}, {% endif %}"
    "{{ m.content }}{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}]</TOOL_RESPONSE>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<SPECIAL_11>Assistant\n{{ m.content }}{% for c in m.tool_calls %}"
    "<TOOLCALL>{{ c.function.name }}</TOOLCALL>{% endfor %}\n<SPECIAL_12>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<SPECIAL_11>Assistant\n{% endif %}"
)
KIMI = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_system|>{{ m.name }}<|im_middle|>## Return of {{ m.tool_call_id }}\n"
    "{{ m.content }}<|im_end|>{% else %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
DATED_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n[{{ strftime_now('%d %B %Y, %H:%M') }}] {{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IDEFICS3 = (
    "<|begin_of_text|>{% for m in messages %}{{ m.role | capitalize }}:{% if m.content[0]['type'] != 'image' %} {% endif %}"
    "{% for part in m.content %}{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
LLAVA_NEXT = (
    "{% for m in messages %}{% if m.role == 'system' %}<<SYS>>\n{{ m.content[0]['text'] }}\n<</SYS>>\n\n"
    "{% elif m.role == 'user' %}[INST] {% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>\n"
    "{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content[0]['text'] }}</s>{% endif %}{% endfor %}"
)
LLAVA_ONEVISION = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {% for part in m.content | selectattr('type', 'equalto', 'image') %}"
    "<image>\n{% endfor %}{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS_OF_USERS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'user' %}{% for part in m.content %}"
    "{% if part is string %}{{ raise_exception('a user message has parts') }}{% endif %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<image>{% endif %}{% endfor %}{% else %}"
    "{{ m.content + '' }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Parts in user messages, strings in all others."""


@dataclass(frozen=True)
class Style:
    """A template, its added tokens, and what it does with a system prompt and tool answers."""

    template: str
    added: tuple[str, ...]
    system: bool = True
    tools: bool = True
    forgeable: bool = False
    joined: bool = False
    """Whether the system prompt becomes a part of a user message."""
    dated: bool = False
    """Whether a date precedes each user text."""
    parts: tuple[str, ...] = ()
    """Roles whose content must be given in parts."""


TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MISTRAL_TOKENS = (
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
)
ALL_ROLES = ("system", "user", "assistant", "tool")

STYLES = {
    "chatml": Style(CHATML, ("<|im_start|>", "<|im_end|>")),
    "qwen2.5": Style(QWEN, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    "qwen3": Style(QWEN3, ("<|im_start|>", "<|im_end|>", "<think>", "</think>")),
    "llama3": Style(LLAMA3, ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "mistral": Style(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"), joined=True),
    "gemma": Style(GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), system=False, tools=False),
    "phi3": Style(PHI3, ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>")),
    "deepseek": Style(
        DEEPSEEK, ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"), tools=False
    ),
    "harmony": Style(HARMONY, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>")),
    "qwen3-tools": Style(QWEN3_TOOLS, ("<|im_start|>", "<|im_end|>", *TOOL_TOKENS, "<think>", "</think>")),
    "named-tools": Style(NAMED_TOOLS, ("<|im_start|>", "<|im_end|>", *TOOL_TOKENS)),
    "tools-in-words": Style(TOOLS_IN_WORDS, ("<|im_start|>", "<|im_end|>")),
    "tools-as-users": Style(TOOLS_AS_USERS, ("<|im_start|>", "<|im_end|>")),
    "openchat": Style(OPENCHAT, ("<s>", "<|end_of_turn|>"), forgeable=True),
    "vicuna": Style(VICUNA, ("<s>", "</s>"), forgeable=True),
    "baichuan": Style(BAICHUAN, ("<reserved_106>", "<reserved_107>")),
    "hermes": Style(HERMES, ("<|im_start|>", "<|im_end|>", *TOOL_TOKENS)),
    "llama3.1": Style(
        LLAMA31, ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
    ),
    "mistral3": Style(MISTRAL3, ("<s>", "</s>", *MISTRAL_TOKENS), joined=True),
    "mistral7": Style(MISTRAL7, ("<s>", "</s>", *MISTRAL_TOKENS, "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]")),
    "deepseek3": Style(
        DEEPSEEK3,
        (
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ),
    ),
    "glm4": Style(GLM4, ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")),
    "glm4.5": Style(GLM45, ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", *TOOL_TOKENS)),
    "granite3": Style(GRANITE3, ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>")),
    "granite4": Style(GRANITE4, ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>", *TOOL_TOKENS)),
    "phi4": Style(PHI4, ("<|im_start|>", "<|im_sep|>", "<|im_end|>")),
    "phi4-mini": Style(PHI4_MINI, ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool_response|>", "<|endoftext|>")),
    "gemma-tools": Style(GEMMA_TOOLS, ("<bos>", "<start_of_turn>", "<end_of_turn>", *TOOL_TOKENS), joined=True),
    "command-r": Style(
        COMMAND_R,
        (
            *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        ),
    ),
    "nemotron": Style(NEMOTRON, ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<TOOL_RESPONSE>", "</TOOL_RESPONSE>")),
    "kimi": Style(KIMI, ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>")),
    "dated-turns": Style(DATED_TURNS, ("<|im_start|>", "<|im_end|>"), dated=True),
    "idefics3": Style(
        IDEFICS3, ("<|begin_of_text|>", "<end_of_utterance>", "<image>"), tools=False, forgeable=True, parts=ALL_ROLES
    ),
    "llava-next": Style(LLAVA_NEXT, ("<s>", "</s>", "<image>"), tools=False, forgeable=True, parts=ALL_ROLES),
    "llava-onevision": Style(LLAVA_ONEVISION, ("<|im_start|>", "<|im_end|>", "<image>"), tools=False, parts=ALL_ROLES),
    "parts-of-users": Style(PARTS_OF_USERS, ("<|im_start|>", "<|im_end|>", "<image>"), parts=("user",)),
    "zephyr": Style(ZEPHYR, ("<s>", "</s>"), forgeable=True),
    "llama2": Style(LLAMA2, ("<s>", "</s>"), system=False, tools=False, forgeable=True),
}


DIALECTS = {
    "special": {"special": True},
    "not special": {"special": False, "normalized": False},
    "normalized": {"special": False, "normalized": True},
    "stripping": {"special": True, "lstrip": True, "rstrip": True},
    "stripping right": {"special": False, "rstrip": True},
    "tools not special": {},
    "sentencepiece": {"special": True, "normalized": False},
}
"""How a tokenizer declares its added tokens. "tools not special" is Qwen3's: only those of tools and thoughts are not."""


def shown(style: Style, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the form that the template accepts."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} if m["role"] in style.parts else m for m in messages]


def tokenizer_of(style: Style, dialect: str = "special") -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, trained on a few lines, with the style's added tokens and template."""
    bpe = Tokenizer(models.BPE())
    lines = ["user\n", "assistant\n", "system\n", "What is the weather like in Paris today?\n\n", "Thank you, that helps. "]
    if dialect == "sentencepiece":
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        bpe.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False)
    else:
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(lines * 20, trainer)
    if dialect == "sentencepiece":
        content = json.loads(bpe.to_str())
        vocabulary = content["model"]["vocab"]
        vocabulary |= {f"<0x{i:02X}>": len(vocabulary) + i for i in range(256)}
        content["model"]["byte_fallback"] = True
        bpe = Tokenizer.from_str(json.dumps(content))
    for token in style.added:
        word = token.strip("</>")
        declared = DIALECTS[dialect] or {"special": not word.startswith(("tool", "think", "TOOL")), "normalized": False}
        bpe.add_tokens([AddedToken(token, **declared)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=style.template)
