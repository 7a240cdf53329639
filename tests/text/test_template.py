"""Chat templates against transformers' apply_chat_template."""

import pytest
from transformers import AutoTokenizer

from muxcluster.core.errors import InvalidValue, LoadError
from muxcluster.text.template import ChatTemplate, RenderOptions

CHATML = """{%- if not messages %}{{ raise_exception('no messages') }}{% endif %}
{% for message in messages %}
    {%- if message['role'] == 'skip' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}{{ message['content'] }}{{ '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is false %}{{ '<think></think>' }}{% endif %}
{% endif %}
"""
LLAMA = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% else %}
{% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endgeneration %}
{% endif %}{% endfor %}{% set ns = namespace(n=1) %}{{ ns.n }}{{ messages | tojson }}
"""
CONTINUE = RenderOptions(add_generation_prompt=False, continue_final_message=True)
TALK = [
    {"role": "user", "content": "  Hé <b>there</b> & 'you' "},
    {"role": "skip", "content": "x"},
    {"role": "assistant", "content": "Fine\n"},
]


@pytest.fixture(params=[CHATML, LLAMA], ids=["chatml", "llama"])
def directory(request, text_directory):
    return text_directory("bytes", chat_template=request.param)


def both(directory, messages, **options):
    """(ours, theirs)."""
    kwargs = options.pop("kwargs", {})
    ours = ChatTemplate.load(directory)
    settings = RenderOptions(**options, kwargs=kwargs)
    theirs = AutoTokenizer.from_pretrained(directory)
    expected = theirs.apply_chat_template(messages, tokenize=False, **options, **kwargs)
    return ours.render(messages, settings), expected


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}])
def test_equals_transformers(directory, generate, kwargs) -> None:
    ours, theirs = both(directory, TALK, add_generation_prompt=generate, kwargs=kwargs)
    assert ours == theirs


@pytest.mark.parametrize("ending", ["Fine", "Fine\n", "Fine  ", [{"type": "text", "text": "Go"}]])
def test_continuing_the_final_message_equals_transformers(text_directory, ending) -> None:
    path = text_directory(
        "bytes",
        chat_template=CHATML.replace("message['content']", "c").replace(
            "{{- '<|im",
            "{%- set c = message['content'] if message['content']"
            " is string else message['content'][0].text %}{{- '<|im",
        ),
    )
    talk = [*TALK[:2], {"role": "assistant", "content": ending}]
    ours, theirs = both(path, talk, add_generation_prompt=False, continue_final_message=True)
    assert ours == theirs
    assert talk[-1]["content"] == ending


@pytest.mark.parametrize("joint", [" + ' ' + eos_token", " + eos_token"])
def test_continuing_under_a_template_that_trims(text_directory, joint) -> None:
    trims = LLAMA.split("{% set ns")[0].replace(" + ' ' + eos_token", joint)
    path = text_directory("bytes", chat_template=trims)
    ours, theirs = both(path, TALK, add_generation_prompt=False, continue_final_message=True)
    assert ours == theirs
    assert ours.rstrip().endswith("Fine")


def test_where_the_template_comes_from(text_directory) -> None:
    assert ChatTemplate.load(text_directory("bytes")) is None
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    path = text_directory("bytes", chat_template=named)
    assert ChatTemplate.load(path).render([]) == "D"
    (path / "chat_template.jinja").write_text("{{ bos_token }}F{{ eos_token }}")
    assert ChatTemplate.load(path).render([]) == "<s>F</s>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 // 0 }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_what_a_template_raises_is_the_callers_message(text_directory, template) -> None:
    chat = ChatTemplate.load(text_directory("bytes", chat_template=template))
    with pytest.raises(InvalidValue) as caught:
        chat.render([{"role": "user", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("template", ["{% if %}", 7])
def test_a_broken_template_is_refused_at_load(text_directory, template) -> None:
    path = text_directory("bytes", chat_template=template)
    with pytest.raises(LoadError, match=r"tokenizer_config\.json"):
        ChatTemplate.load(path)


def test_bad_options_name_the_field(directory) -> None:
    chat = ChatTemplate.load(directory)
    with pytest.raises(InvalidValue) as caught:
        chat.render(TALK, RenderOptions(kwargs={"messages": []}))
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(InvalidValue) as caught:
        chat.render(TALK, RenderOptions(continue_final_message=True))
    assert caught.value.param == "continue_final_message"
    with pytest.raises(InvalidValue, match="no text"):
        chat.render([], CONTINUE)
