"""The official `openai` package against a whole server: as programs use it, without a word about what server it is."""

import asyncio
import json

import openai

from tests.clients.words import call, tape

MODEL = "tape"
CITY = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


def say(text: str, **more) -> dict:
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": tape(text)}], **more}


def test_async_answers_and_streams_run_side_by_side(agent) -> None:
    async def streamed(client, text: str) -> str:
        stream = await client.chat.completions.create(**say(text), stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(streamed(client, f"answer {i} 😀") for i in range(8)))

    assert asyncio.run(run()) == [f"answer {i} 😀" for i in range(8)]


def test_a_loop_of_tools_comes_to_its_end(client) -> None:
    messages = say(call("get_weather", city="São Paulo") + call("get_weather", city="Oslo"))["messages"]
    first = client.chat.completions.create(model=MODEL, temperature=0, messages=messages, tools=[CITY])
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(made.function.arguments) for made in choice.message.tool_calls] == [
        {"city": "São Paulo"},
        {"city": "Oslo"},
    ]
    messages.append(choice.message.model_dump(exclude_none=True))
    messages += [
        {"role": "tool", "tool_call_id": made.id, "content": json.dumps({"degrees": 20})}
        for made in choice.message.tool_calls
    ]
    messages.append({"role": "user", "content": tape("20 degrees in both.")})
    last = client.chat.completions.create(model=MODEL, temperature=0, messages=messages, tools=[CITY])
    assert last.choices[0].message.content == "20 degrees in both."
    assert last.choices[0].finish_reason == "stop"


def test_arguments_of_a_call_stream(client) -> None:
    stream = client.chat.completions.create(**say(call("get_weather", city="Oslo")), tools=[CITY], stream=True)
    deltas = [d for chunk in stream for choice in chunk.choices for d in choice.delta.tool_calls or []]
    assert [d.function.name for d in deltas if d.function.name] == ["get_weather"]
    pieces = [d.function.arguments for d in deltas if d.function.arguments]
    assert len(pieces) > 3
    assert json.loads("".join(pieces)) == {"city": "Oslo"}


def test_reasoning_comes_apart(client) -> None:
    answer = client.chat.completions.create(**say("<think>hm</think>yes"))
    assert answer.choices[0].message.content == "yes"
    assert answer.choices[0].message.reasoning_content == "hm"


def test_responses_whole_and_streamed(client) -> None:
    whole = client.responses.create(model=MODEL, temperature=0, input=tape("ab"))
    assert (whole.output_text, whole.status) == ("ab", "completed")
    with client.responses.stream(model=MODEL, temperature=0, input=tape("ab")) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "ab"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    cut = client.responses.create(model=MODEL, temperature=0, input=tape("abc"), max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_responses_call_tools(client) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": CITY["function"]["parameters"], "strict": False}
    items = [{"role": "user", "content": tape(call("get_weather", city="Oslo"))}]
    first = client.responses.create(model=MODEL, temperature=0, input=items, tools=[tool])
    made = next(item for item in first.output if item.type == "function_call")
    assert json.loads(made.arguments) == {"city": "Oslo"}
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": made.call_id, "output": "20"})
    items.append({"role": "user", "content": tape("20 degrees.")})
    last = client.responses.create(model=MODEL, temperature=0, input=items, tools=[tool])
    assert last.output_text == "20 degrees."
