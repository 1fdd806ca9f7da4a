"""An OpenAI chat-completions proxy for one node's encoder (E) and prefill+decode (PD) engines.

The path of one request: `items` finds its images, videos and audio clips and gives each a key;
`grouping` decides which encoder gets which; `encode` has them encoded concurrently; `rewrite`
takes the media out of PD's request; `forward` sends that to PD and, while nothing has been shown
to the client (`gate`), may encode once more. `take_back` settles what was announced for a request
that no PD has taken. `pool` knows which engines are up, `app` has the routes.
"""
