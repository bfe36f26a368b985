# docker build -t reasoning-proxy .
# docker run -p 8484:8484 --stop-timeout 40 -v reasoning-proxy:/data -v ./config.toml:/data/config.toml:ro reasoning-proxy
#
# Beyond loopback the proxy wants a key from its callers: it starts only where the mounted config.toml has a [clients]
# table. Turns and ledger lie in /data, unless `store.url` names a PostgreSQL database. Running streams get
# `drain_seconds` (30) at the end, hence --stop-timeout.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /venv
COPY constraints-run.txt ./
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r constraints-run.txt
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.12-slim
RUN useradd --home-dir /data --uid 10001 reasoning-proxy && install -d -o reasoning-proxy -g reasoning-proxy /data
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
USER reasoning-proxy
WORKDIR /data
VOLUME /data
EXPOSE 8484
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 CMD ["python", "-c", \
    "from urllib import request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:8484/health', timeout=4)"]
ENTRYPOINT ["reasoning-proxy"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8484"]
