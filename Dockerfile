# segstore serve as a container: docs/packaging.md says how it is built and run.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src confluent-kafka prometheus-client

FROM python:3.13-slim
# The command line asks a server by confluent-kafka, as in `docker compose exec segstore segstore topics -b localhost:9092`;
# prometheus-client is for --http.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels segstore confluent-kafka prometheus-client
# The store is owned by a user without rights; a new volume takes the owner and the mode of this directory.
RUN useradd --uid 10001 --no-create-home segstore && install -d -m 0700 -o segstore -g segstore /store
USER segstore
WORKDIR /store
VOLUME /store
ENV SEGSTORE_PATH=/store
EXPOSE 9092 9100
HEALTHCHECK --interval=30s --timeout=5s --start-period=1m \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9100/healthz', timeout=4)"]
# segstore is process 1, so SIGTERM (docker stop) closes the store.
ENTRYPOINT ["segstore"]
CMD ["serve", "--listen", "0.0.0.0:9092", "--advertise", "localhost:9092", "--http", "0.0.0.0:9100"]
