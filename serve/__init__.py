"""HTTP, processes, the wire's transport, CLI and metrics: builds every other layer, and holds the only async code.

Where to read, by what you look for:

    start-up     cli → flags (flag_values, speculative_flags) → listener
                 → config (gpu_options, parallel_options, speculative_options)
                 → serving: prepare (the model without tensors; draft_model, devices) → children → main_process
    processes    main: supervisor, engine, stream, served_model
                 the detokenizer's: detokenizer_process → detokenizer, stops
                 a scheduler's, one a rank: scheduler_process → lockstep,
                 scheduling (garbage, profiling, speculation, storage)
                 several nodes: nodes, node_link; the main process of another than the first: further_node
                 what children share: childhood · between them: transport, and the types of `scheduler.messages`
    a request    http_protocol → app (parts, settings) → auth → routes, by route_table → call
                 → completions, chat_completions, responses (response_store, response_pages), anthropic, ollama, native,
                 text_routes, parse_routes, embeddings, score, rerank, decisions (questions; these three: labels)
                 → requests → fan → engine
    its way in   body, fields, sampling_fields, native_fields, seeds; responses_fields, responses_items;
                 anthropic_fields, anthropic_content; ollama_fields
                 → prompts, conversation (chat, messages, sandbox), tokenizer (spelling) → chatting, asks
    grammars     grammar_fields → grammars: schemas (schema_words, schema_joins, schema_objects, schema_arrays), ranges,
                 strings, patterns, structural_tags → rules
                 → grammar_store → compiler · a process of its own: compiler_process (compiling, vocabulary)
    what it asks answer_plan: tools, reasoning → tool_grammars, grammars; output_parser
    its way out  generation → events → answer: completion_answer, chat_answer (openai_answer), native_answer; blocks:
                 responses_answer, anthropic_answer, ollama_answer (json_arguments)
                 logprobs, usage, stream_usage, sse; errors, error_shapes
    its reading  output_parser → machine, by syntax (tool_syntaxes, reasoning_syntaxes, recognition; marks,
                 json_reading, python_reading, values) → behind_calls → spoken → events
    operators    admin, probes, model_routes, metrics, log, timeline; for tests: failpoints
    drafts       cli → draft_command (draft_flags, draft_speech, draft_progress): made and judged without a server
    for people   page, its files in web/
    for programs openapi, from operations (request_schemas, answer_schemas; shapes)

The main and the detokenizer process never import torch.
"""
