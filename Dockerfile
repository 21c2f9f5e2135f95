# The gateway and the simulated fleet (kvlane-sim) in one image, with the versions the checks have passed with.
FROM python:3.11.14-slim-bookworm AS build
RUN python -m venv /opt/kvlane
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY policies policies
COPY gateway gateway
COPY loadtests loadtests
RUN /opt/kvlane/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11.14-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin kvlane
COPY --from=build /opt/kvlane /opt/kvlane
ENV PATH=/opt/kvlane/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
# The API and the admin listener. In a container both must listen on 0.0.0.0: publish them on 127.0.0.1 only.
EXPOSE 8080 8081
HEALTHCHECK --interval=5s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["kvlane"]
CMD ["serve", "/etc/kvlane/kvlane.yaml"]
