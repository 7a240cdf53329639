"""Chat templates of model families, shortened to what is about tools and reasoning.

Written after the templates that the families publish: the same marks, roles and variables, without
dates, built-in tools and wording.
"""

HERMES = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nfor each call <tool_call></tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content }}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{%- if not loop.first or message.content %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""

QWEN3_CODER = """\
{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools or [] %}{{ '<function><name>' + tool.function.name + '</name>\\n' }}
{%- endfor %}{{ 'Call as <tool_call>\\n<function=name>\\n</function>\\n</tool_call><|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant' }}
{%- if message.content %}{{ '\\n' + message.content }}{% endif %}
{%- for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}
{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
{%- for args_name, args_value in tool_call.arguments | items %}
{{- '<parameter=' + args_name + '>\\n' }}
{%- if args_value is mapping or (args_value is sequence and args_value is not string) %}
{{- args_value | tojson }}{% else %}{{ args_value | string }}{% endif %}
{{- '\\n</parameter>\\n' }}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response>\\n<|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """\
{{- bos_token }}{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is defined and tools is not none %}{{ 'Environment: ipython\\n' }}
{%- for t in tools %}{{ t | tojson(indent=4) + '\\n\\n' }}{% endfor %}{% endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}
{%- if not message.tool_calls | length == 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", ' }}
{{- '"parameters": ' }}{{ tool_call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- elif message.role == 'tool' or message.role == 'ipython' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{{- bos_token }}
{%- if tools is not none %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS][' }}{% for tool_call in message.tool_calls %}
{%- set out = tool_call.function | tojson %}{{ out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- ', "id": "' + tool_call.id + '"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}
{%- endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}{% endif %}{% endfor %}"""

MISTRAL_NAMED = """\
{{- bos_token }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
{%- endfor %}{{ eos_token }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- endif %}{% endfor %}"""

DEEPSEEK = """\
{{- bos_token }}{% for message in messages %}
{%- if message.role == 'system' %}{{ message.content }}{% endif %}{% endfor %}
{%- if tools %}{{ '## Tools\\n' + (tools | tojson) }}{% endif %}
{%- set ns = namespace(is_first=true, in_results=false) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}
{{- '<｜Assistant｜>' + message.content.split('</think>')[-1] }}
{%- if message.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}{% for tool in message.tool_calls %}
{%- if not loop.first %}{{ '\\n' }}{% endif %}
{{- '<｜tool▁call▁begin｜>' + tool.type + '<｜tool▁sep｜>' + tool.function.name + '\\n```json\\n' }}
{{- tool.function.arguments | tojson }}{{ '\\n```<｜tool▁call▁end｜>' }}{% endfor %}
{{- '<｜tool▁calls▁end｜>' }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""

DEEPSEEK_NAMED = """\
{{- bos_token }}{% if tools %}{{ '## Tools\\n' + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' %}{{ '<｜Assistant｜></think>' + message.content }}
{%- if message.tool_calls %}{{ '<｜tool▁calls▁begin｜>' }}{% for tool in message.tool_calls %}
{{- '<｜tool▁call▁begin｜>' + tool.function.name + '<｜tool▁sep｜>' }}
{{- tool.function.arguments | tojson }}{{ '<｜tool▁call▁end｜>' }}{% endfor %}
{{- '<｜tool▁calls▁end｜>' }}{% endif %}{{ '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}
{%- if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}{% endif %}"""

HARMONY = """\
{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}{{ '<|start|>developer<|message|># Tools\\n\\nnamespace functions {\\n' }}
{%- for tool in tools %}{{ 'type ' + tool.function.name + ' = () => any;\\n' }}{% endfor %}
{{- '}<|end|>' }}{% endif %}
{%- set last = namespace(name=none) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' and 'tool_calls' in message %}
{%- if message.content and message.thinking %}
{{- raise_exception('Cannot pass both content and thinking with tool calls!') }}{% endif %}
{%- if message.content or message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' }}
{{- (message.content or message.thinking) + '<|end|>' }}{% endif %}
{%- set call = message.tool_calls[0].function %}{% set last.name = call.name %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- call.arguments | tojson + '<|call|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'tool' %}{{ '<|start|>functions.' + last.name }}
{{- ' to=assistant<|channel|>commentary<|message|>' + message.content | tojson + '<|end|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

# knows no tools, and neither role
PLAIN = """\
{%- for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant') %}
{{- raise_exception('unknown role') }}{% endif %}
{{- '<|' + message.role + '|>' + message.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

BY_FORMAT = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral-named": MISTRAL_NAMED,
    "deepseek": DEEPSEEK,
    "deepseek-named": DEEPSEEK_NAMED,
}
# where an assistant's turn begins and ends in each
TURNS = {
    "hermes": ("<|im_start|>assistant\n", "<|im_end|>"),
    "qwen3_coder": ("<|im_start|>assistant\n", "<|im_end|>"),
    "llama3": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "mistral": ("[/INST]", "</s>"),
    "mistral-named": ("[/INST]", "</s>"),
    "deepseek": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "deepseek-named": ("<｜Assistant｜></think>", "<｜end▁of▁sentence｜>"),
}
