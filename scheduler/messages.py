"""What one may ask of a scheduler and what it answers: the types on the wire, as msgpack.

main ──Generate, Abort, Control, Learn, Forget──▶ scheduler ──Step──▶ detokenizer ──Texts──▶ main
                                   scheduler ──Ready, Heartbeat, Stats, Reply──▶ main
Both children also tell main of their start-up with Stage, Ready or Failed.
"""

from typing import Literal

import msgspec

from corymb.cache.picture import TreePicture

MAX_MESSAGE_BYTES = 64 << 20
DIRECTIONS = ("stored", "loaded")


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of every message that travels alone on a socket."""


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer must follow. Equal values are the same grammar: the text is already checked and normal."""

    kind: Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag"]  # what the client wrote
    text: str  # rules in GBNF whatever the kind, except for a structural tag: its JSON
    after: tuple[int, ...] = ()  # token ids that must have come before it applies: the end of reasoning; () at once
    spells_end: bool = False  # its rules end in the character models.grammar_backends.END


class Thinking(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long an answer may think."""

    max_tokens: int  # then its end comes, token by token, whatever the model would rather say
    end: tuple[int, ...]  # token ids of the mark behind a thought
    begin: tuple[int, ...] = ()  # what an output begins with that thinks; (): the prompt began the thought


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request picks tokens. Every value is already inside its bounds: see `scheduler.door`."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps the whole vocabulary
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0  # always set: the HTTP edge draws one where the client gave none
    seeded: bool = False  # the client gave it: the same seed gives the same tokens, however they are computed
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None
    thinking: Thinking | None = None


class TextOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the detokenizer must know of a request; the scheduler only carries it along."""

    stop: tuple[str, ...] = ()
    min_new_tokens: int = 0  # a stop string inside the first so many tokens does not end the request
    include_stop: bool = False  # keep the matched stop string or stop token in the text
    skip_special_tokens: bool = True
    shown_specials: tuple[int, ...] = ()  # special tokens that are in the text even where the others are left out
    # Stop strings count behind `thought_end` only, where the text begins with `thought` ("" for one that goes on from
    # the prompt); without `thought_end` everywhere.
    thought: str = ""
    thought_end: str = ""
    prompt_tail: tuple[int, ...] = ()  # last prompt tokens, where decoding needs left context


class LogprobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which logprobs a request wants."""

    top: int = 0  # alternatives per position
    prompt_from: int = -1  # first prompt position whose logprob is wanted; -1 for none
    token_ids: tuple[int, ...] = ()  # report these ids at each position too


class Generate(Message, frozen=True):
    """Asks for tokens after a prompt. Exactly one `Output` with a finish answers it."""

    rid: str
    prompt: bytes  # int32 little-endian token ids; `np.frombuffer(prompt, np.int32)`
    sampling: Sampling
    text: TextOptions = TextOptions()
    logprobs: LogprobOptions | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    routing_key: str | None = None
    arrived_s: float = 0.0  # time.monotonic() at the HTTP edge; one clock for all processes of a host
    embed: bool = False  # the hidden state of the prompt's last token is wanted; with max_new_tokens 1


class Abort(Message, frozen=True):
    """Ends a request wherever it is. `stopped` means the detokenizer saw a stop string: the prefix may be cached."""

    rid: str
    stopped: bool = False


class TooSlow(Message, frozen=True):
    """Ends a request whose grammar holds up everybody else. Of several ranks one measures, and tells all."""

    rid: str
    seconds: float  # that one token took


Action = Literal["flush_cache", "picture_tree", "pause", "retract", "continue", "start_profile", "stop_profile"]


class Control(Message, frozen=True):
    """An operator's order; answered by a `Reply` with the same id."""

    id: str
    action: Action
    num_steps: int = 0  # of start_profile: turns of the loop after which it stops by itself
    max_nodes: int = 0  # of picture_tree


class Learn(Message, frozen=True):
    """A compiled grammar. Answered by a `Reply` with the same id; until then no request may name it."""

    id: str
    grammar: Grammar
    compiled: bytes


class Forget(Message, frozen=True):
    """No further request will name this grammar; those that did keep it."""

    grammar: Grammar


class Finish(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request ended."""

    reason: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None  # the stop token id or stop string
    message: str = ""  # for abort and error: one sentence for the client
    status: int = 200  # HTTP status that fits, where the client has seen nothing yet
    code: str | None = None  # machine-readable error code


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """One position: the token there, its log-probability (None for a prompt's first token), and alternatives."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()
    chosen: tuple[tuple[int, float], ...] = ()  # for LogprobOptions.token_ids


class Speculated(msgspec.Struct, frozen=True, array_like=True):
    """What speculation did for one request."""

    num_steps: int  # that verified drafts of it
    num_drafts: int  # verified
    num_accepted: int


class Output(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What one step gave one request."""

    rid: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    finish: Finish | None = None
    text: TextOptions | None = None  # on the request's first output only
    logprobs: list[Logprob] | None = None  # one a token id
    prompt_logprobs: list[Logprob] | None = None  # on the first output only
    queue_s: float = 0.0  # on the first output only: arrival to first launch
    embedding: bytes | None = None  # little-endian float32 of length 1, for Generate.embed
    speculated: Speculated | None = None  # with the finish, where drafts were verified


class Step(Message, frozen=True):
    """Everything one step gave, in one message."""

    outputs: list[Output]


class TextLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A `Logprob` with its tokens spelled out."""

    token_id: int
    token: str
    token_bytes: list[int]
    logprob: float | None
    top: list["TextLogprob"] = []
    chosen: list["TextLogprob"] = []


class Text(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the detokenizer made of one `Output`. `text` is a delta; half characters are held back."""

    rid: str
    text: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int  # so far, the matched stop token included
    finish: Finish | None = None
    logprobs: list[TextLogprob] | None = None
    prompt_logprobs: list[TextLogprob] | None = None
    queue_s: float = 0.0
    embedding: bytes | None = None
    speculated: Speculated | None = None


class Texts(Message, frozen=True):
    """Everything one step gave, as text."""

    texts: list[Text]


class Stage(Message, frozen=True):
    """A child process begins a stage of its start-up, or has finished it."""

    process: str
    name: str
    seconds: float | None = None  # None: it begins now
    detail: str = ""


class Ready(Message, frozen=True):
    """A child process has finished its start-up."""

    process: str  # "scheduler-0", "detokenizer"
    pid: int
    info: dict[str, int | float | str | bool | None] = {}


class Failed(Message, frozen=True):
    """A child process cannot start, in one sentence for the operator."""

    process: str
    message: str


class Heartbeat(Message, frozen=True):
    """Sent by every child each half second: alive, and since when it has been busy with one turn of its loop."""

    steps: int  # turns of the loop so far
    step_age_s: float = 0.0  # 0 while idle
    process: str = "scheduler-0"


class StorageStats(Message, frozen=True, kw_only=True):
    """The cache's files: what they take, and by direction what was copied, how long it took, and what failed."""

    used_bytes: int = 0
    max_bytes: int = 0
    loaded_tokens: dict[str, int] = msgspec.field(default_factory=lambda: {"full": 0})  # by pool, given to requests
    copied_bytes: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    seconds: dict[str, float] = msgspec.field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0.0))
    failures: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))


class Stats(Message, frozen=True):
    """A snapshot of the scheduler for the metrics endpoint. Counters only grow."""

    num_running: int
    num_waiting: int
    pool_used: dict[str, int]  # tokens by pool, leased or in flight (evictable excluded)
    pool_evictable: dict[str, int]
    pool_total: dict[str, int]
    tree_evictable: dict[str, int]  # tokens in the tree by component, states for the recurrent one
    tree_protected: dict[str, int]
    tree_tombstones: dict[str, int]  # nodes without the component
    tree_nodes: int
    hit_tokens: dict[str, int]  # found for admitted requests, had this component alone decided
    num_steps: int
    num_retractions: int
    num_preemptions: int
    num_prefill_tokens: int  # computed
    num_cached_tokens: int  # taken from the tree
    num_generated_tokens: int
    num_aborted: int
    new_token_ratio: float
    host_total: dict[str, int] = {}  # tokens by pool of the cache's second tier; empty where there is none
    host_used: dict[str, int] = {}
    host_stored: dict[str, int] = {}  # tokens by pool copied to it
    host_loaded: dict[str, int] = {}  # and back
    host_bytes: dict[str, int] = {}  # copied in all: "stored" and "loaded"
    storage: StorageStats = StorageStats()  # all zeros where there is no third tier
    draft_steps: int = 0  # steps of a row in which drafts of it were verified
    drafts_verified: list[int] = []  # by place in the row's window
    drafts_accepted: list[int] = []
    blocks: int = 0  # blocks of drafts of which it is known how many would have been accepted, or between which bounds
    block_tokens: dict[str, float] = {}  # by bound, "lower" and "upper": what they would have given, whole
    draft_windows: list[int] = []  # how many of those steps verified so many drafts
    plan_s: list[float] = []  # since the last snapshot, a step each: planning
    commit_s: list[float] = []  # since the last snapshot, a step each: processing results
    forward_s: list[float] = []  # since the last snapshot, a step each
    foreseen_s: list[
        tuple[float, float]
    ] = []  # the same, of steps of which something was expected: that, and what came


class Reply(Message, frozen=True):
    """Answers a `Control` or a `Learn`."""

    id: str
    ok: bool
    message: str = ""
    tree: TreePicture | None = None


ToScheduler = Generate | Abort | Control | Learn | Forget | TooSlow
ToDetokenizer = Step
ToMain = Texts | Stage | Ready | Failed | Heartbeat | Stats | Reply
