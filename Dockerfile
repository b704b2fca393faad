# An image of the daemon. Two targets:
#   docker build --tag replicator:0.1.0 .                                  slim, the default: the local engine
#   docker build --tag replicator:0.1.0-spark --target spark .             the Spark engine too, with a Java runtime and its jars
# A pipeline is the folder /srv/replicator, with config/, .env, state/ and the lake in it: mount them. The lake is lake/
# in what `replicator init` writes, and deltalake/ in the shipped config. See docs/how-to/run-as-a-service.md.
# Base images are named by version. To pin one, add the digest that your registry shows: python:3.11.14-slim-bookworm@sha256:...

# The packages of the lock that `replicator` and its extras need, each checked by its hash. The virtual environment has no pip.
FROM python:3.11.14-slim-bookworm AS build
# Extras that the image does without.
ARG WITHOUT="all stack spark notebook"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Older versions of pip do not check hashes of constraints.
RUN echo "pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13" > pip.txt \
    && pip install --require-hashes --requirement pip.txt \
    && python -m venv --without-pip /opt/replicator
COPY pyproject.toml requirements.lock ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [d for e, all in p['optional-dependencies'].items() if e not in '${WITHOUT}'.split() for d in all]; \
print(*p['dependencies'], *(d for d in extras if not d.startswith('replicator[')), sep='\n')" > packages.txt \
    && pip --python /opt/replicator/bin/python install --only-binary :all: --requirement packages.txt --constraint requirements.lock
# The build backend of the lock stays in this stage.
RUN pip install --only-binary :all: hatchling --constraint requirements.lock
COPY README.md LICENSE hatch_build.py ./
COPY replicator replicator
COPY adapters adapters
COPY config config
COPY connectors connectors
COPY init-scripts init-scripts
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/replicator/bin/python install --no-deps dist/*.whl


FROM build AS build-spark
COPY requirements-spark.lock ./
# PySpark comes as source, which setuptools packs. jgo and platformdirs fetch the jars.
RUN echo "setuptools==80.9.0 --hash=sha256:062d34222ad13e0cc312a4c02d73f059e86a4acbfbdea8f8f76b28c99f306922" > setuptools.txt \
    && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['optional-dependencies']['spark'], sep='\n')" > packages.txt \
    && pip --python /opt/replicator/bin/python install --only-binary :all: --no-binary pyspark --requirement packages.txt \
        --constraint requirements-spark.lock --build-constraint setuptools.txt
# The jars of adapters/jvm/jars.lock.toml, checked by their hashes.
ENV REPLICATOR_JAR_CACHE=/opt/replicator/jars
RUN /opt/replicator/bin/python -c "from adapters.jvm.jars import fetch_jars; fetch_jars('spark', 's3')"


FROM python:3.11.14-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="replicator" org.opencontainers.image.licenses="Apache-2.0"
# The base image's own pip is of no use here.
RUN pip uninstall --yes pip setuptools wheel \
    && groupadd --gid 10001 replicator \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /srv/replicator replicator \
    && mkdir --parents /srv/replicator/config /srv/replicator/state /srv/replicator/lake /srv/replicator/deltalake \
    && chown --recursive 10001:10001 /srv/replicator
ENV PATH=/opt/replicator/bin:$PATH PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/replicator
VOLUME ["/srv/replicator/config", "/srv/replicator/state", "/srv/replicator/lake", "/srv/replicator/deltalake"]
EXPOSE 8090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8090/livez', timeout=4)"]
ENTRYPOINT ["replicator"]
CMD ["run"]


FROM runtime AS spark
# Debian removes old versions of a package from its archive, so a version here would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/replicator /opt/replicator
ENV REPLICATOR_JAR_CACHE=/opt/replicator/jars
USER 10001:10001


FROM runtime AS slim
COPY --from=build /opt/replicator /opt/replicator
USER 10001:10001
