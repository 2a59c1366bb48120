"""Structured output as each client asks for it: an object of the caller's class comes back, whatever was said."""

import json

import instructor
import ollama
import openai
import pydantic
import pytest

from tests.clients.test_openai import CITY, MODEL, say
from tests.clients.words import call, tape

GREEDY = {"temperature": 0, "num_predict": 300}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)  # else a model that never comes to an end would never close the string
    age: int = pydantic.Field(ge=0, le=150)


def test_parsed_output_is_an_object_of_the_callers_class(client) -> None:
    parsed = client.chat.completions.parse(**say('{"name": "Ada", "age": 36}'), response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    # What the model would rather say is no instance; the grammar lets nothing else through.
    forced = client.chat.completions.parse(**say("Once upon a time", max_tokens=200), response_format=Person)
    assert forced.choices[0].finish_reason == "stop"
    assert isinstance(forced.choices[0].message.parsed, Person)


def test_parsed_output_streams(client) -> None:
    text = '{"name": "Ada", "age": 36}'
    with client.chat.completions.stream(**say(text), response_format=Person) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)
    assert kinds.count("content.delta") > 3
    assert "content.done" in kinds


def test_a_named_tool_is_called_whatever_the_model_would_say(client) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(**say("just prose", max_tokens=300), tools=[CITY], tool_choice=named)
    made = answer.choices[0].message.tool_calls
    assert made[0].function.name == "get_weather"
    assert isinstance(json.loads(made[0].function.arguments)["city"], str)


def test_responses_parse(client) -> None:
    text = '{"name": "Ada", "age": 36}'
    parsed = client.responses.parse(model=MODEL, temperature=0, input=tape(text), text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)


def test_a_schema_is_kept(agent) -> None:
    messages = [{"role": "user", "content": tape('{"age": 36}')}]
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    answer = ollama.Client(host=agent.url).chat("tape", messages=messages, format=schema, options=GREEDY)
    assert answer.message.content == '{"age": 36}'


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA], ids=str)
def test_instructor_gives_objects(agent, mode) -> None:
    inside = '{"name": "Ada", "age": 36}'
    said = call("Person", name="Ada", age=36) if mode is instructor.Mode.TOOLS else inside
    with openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as plain:
        client = instructor.from_openai(plain, mode=mode)
        messages = [{"role": "user", "content": tape(said)}]
        person = client.create(
            model="tape", temperature=0, max_tokens=200, messages=messages, response_model=Person, max_retries=0
        )
    assert isinstance(person, Person)
