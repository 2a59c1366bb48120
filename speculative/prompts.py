"""Prompts to train on and to judge by: five kinds of task over many topics, all from one source of chance."""

from collections.abc import Callable
from random import Random

from corymb.speculative import topics

SHARES = {"arithmetic": 0.22, "list": 0.20, "chat": 0.34, "poem": 0.12, "code": 0.12}
# Of the prompts that drafts are judged by.
JUDGED_SHARES = {"arithmetic": 0.22, "list": 0.22, "chat": 0.22, "poem": 0.22, "code": 0.12}

_LISTS = (
    "List {n} facts about {topic}.",
    "Give me {n} ideas for a short film about {topic}.",
    "Name {n} words that have to do with {topic}.",
    "Write {n} questions for a quiz about {topic}.",
    "What are {n} common mistakes about {topic}? Answer as a numbered list.",
    "Make a list of {n} titles for a book about {topic}.",
)
_CHATS = (
    "Explain {topic} to a child.",
    "What should I know about {topic}?",
    "Why do people care about {topic}?",
    "Tell me a short story about {topic}.",
    "Write an email to a friend about {topic}.",
    "What is the history of {topic}?",
    "Give me some advice about {topic}.",
    "Summarise what is known about {topic} in one paragraph.",
    "How does {topic} change the way people live?",
    "Compare {topic} with {other}.",
)
_POEMS = (
    "Write a poem about {topic}.",
    "Write a short rhyming poem about {topic}.",
    "Compose four lines of verse about {topic}.",
    "Write a song about {topic} with a chorus.",
)
_CODES = (
    "Write a Python function that {task}.",
    "Write a Python program that {task}, with comments.",
    "Show me JavaScript that {task}.",
    "Write a function that {task} and explain how it works.",
)


class Prompts:
    """Draws prompts, either for training or, with `held_out`, of topics that training never sees."""

    def __init__(self, seed: int, *, held_out: bool) -> None:
        self._random = Random(seed)  # noqa: S311 - repeatable on purpose
        self._held_out = held_out
        self._topics = topics.HELD_OUT if held_out else topics.TOPICS
        self._tasks = topics.HELD_OUT_TASKS if held_out else topics.TASKS
        self._names = topics.HELD_OUT_NAMES if held_out else topics.NAMES
        self._things = topics.HELD_OUT_THINGS if held_out else topics.THINGS
        self._makers: dict[str, Callable[[], str]] = {
            "arithmetic": self._arithmetic,
            "list": self._list,
            "chat": self._chat,
            "poem": lambda: self._pick(_POEMS).format(topic=self._pick(self._topics)),
            "code": lambda: self._pick(_CODES).format(task=self._pick(self._tasks)),
        }

    def of(self, kind: str) -> str:
        """A prompt of one kind."""
        return self._makers[kind]()

    def mixed(self) -> tuple[str, str]:
        """A kind by its share, and a prompt of it."""
        kind = self._random.choices(list(SHARES), list(SHARES.values()))[0]
        return kind, self.of(kind)

    def _pick(self, choices: tuple[str, ...]) -> str:
        return self._random.choice(choices)

    def _list(self) -> str:
        return self._pick(_LISTS).format(n=self._random.choice((3, 5, 7, 8, 10)), topic=self._pick(self._topics))

    def _chat(self) -> str:
        return self._pick(_CHATS).format(topic=self._pick(self._topics), other=self._pick(self._topics))

    def _arithmetic(self) -> str:
        """Pairs of numbers are held out by a rule, since there are too few of them to list."""
        while True:
            first, second = self._random.randint(2, 99), self._random.randint(2, 99)
            if ((first + 3 * second) % 8 == 0) == self._held_out:
                break
        name, thing = self._pick(self._names), self._pick(self._things)
        return self._random.choice(
            (
                f"What is {first} + {second}?",
                f"What is {first} times {second}?",
                f"Calculate {max(first, second)} - {min(first, second)} step by step.",
                f"{name} has {first} {thing} and buys {second} more. How many {thing} does {name} have?",
                f"{name} has {first + second} {thing} and gives away {second}. How many are left? Explain each step.",
                f"Count from {first} to {first + 12}.",
                f"Write the multiplication table of {first} up to 10.",
            )
        )


def judged(num_prompts: int, seed: int = 1) -> list[tuple[str, str]]:
    """Kinds and prompts of held-out topics, always the same for the same seed."""
    prompts = Prompts(seed, held_out=True)
    counts = {kind: int(share * num_prompts) for kind, share in JUDGED_SHARES.items()}
    counts["chat"] += num_prompts - sum(counts.values())
    return [(kind, prompts.of(kind)) for kind, count in counts.items() for _ in range(count)]
