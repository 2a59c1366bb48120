"""langchain-openai on a whole server, by LangChain's own standard suite for chat models.

The suite asks in prose and expects a real model's sense for when to call a tool. `Scripted` says on which tape the model
is to answer each of its prompts; everything else, the client, the wire and the parsing, is the real thing.
"""
