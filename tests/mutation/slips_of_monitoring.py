"""Slips in what is watched: HTTP, Graphite, metrics and their documents, the log."""

from __future__ import annotations

from tests.mutation.trial import Slip

_HTTP_PORT = "engine/net/http_port.py"
_GRAPHITE = "engine/net/graphite.py"
_METRICS_JSON = "engine/net/metrics_json.py"
_PROMETHEUS = "engine/net/prometheus.py"
_LOGS = "engine/net/logs.py"
_OF_HTTP_LIMITS = ("tests/node/test_http_limits.py",)
_OF_VALUES = ("tests/net/test_values.py",)
_OF_GRAPHITE = ("tests/net/test_graphite.py",)
_OF_METRICS = ("tests/node/test_metrics.py",)
_OF_LOGS = ("tests/net/test_logs.py",)

MONITORING: tuple[Slip, ...] = (
    Slip(
        _HTTP_PORT,
        "return self._server is not None and self._server.is_serving()",
        "return self._server is not None",
        _OF_HTTP_LIMITS,
        "health does not see that the port is gone",
    ),
    Slip(
        _HTTP_PORT,
        "[: None if port else 1]",
        "",
        _OF_HTTP_LIMITS,
        "a name of two addresses has two ports, and one is told",
    ),
    Slip(
        _HTTP_PORT,
        "            http.pre_shutdown()\n",
        "",
        _OF_HTTP_LIMITS,
        "a stop cuts answers off",
    ),
    Slip(
        _HTTP_PORT,
        "                http.forget()\n",
        "                pass\n",
        _OF_HTTP_LIMITS,
        "timers of connections outlive the port",
    ),
    Slip(
        _HTTP_PORT,
        "        server, self._server = self._server, None\n",
        "        server = self._server\n",
        _OF_HTTP_LIMITS,
        "a port that was closed says that it listens",
    ),
    Slip(
        _HTTP_PORT,
        "        await self._reading.idle(seconds)\n",
        "",
        _OF_HTTP_LIMITS,
        "a look at the metrics outlives the node",
    ),
    Slip(
        _HTTP_PORT,
        "except (OverdueError, RuntimeError) as error:",
        "except OverdueError as error:",
        _OF_HTTP_LIMITS,
        "a machine without threads is a bug of ours",
    ),
    Slip(
        _HTTP_PORT,
        'accept = ", ".join(request.headers.getall("Accept", []))',
        'accept = request.headers.get("Accept", "")',
        _OF_HTTP_LIMITS,
        "half of what a peer accepts is not heard",
    ),
    Slip(
        _HTTP_PORT,
        '        response.headers["Vary"] = "Accept"\n',
        "",
        _OF_HTTP_LIMITS,
        "a cache gives Prometheus JSON",
    ),
    Slip(
        _HTTP_PORT,
        "            transport.abort()\n        super().connection_made",
        "            transport.close()\n        super().connection_made",
        _OF_HTTP_LIMITS,
        "one too many stays as long as it likes",
    ),
    Slip(
        _HTTP_PORT,
        "call_later(self._limits.connection_seconds, transport.abort)",
        "call_later(self._limits.connection_seconds, transport.close)",
        _OF_HTTP_LIMITS,
        "who reads nothing keeps its connection for ever",
    ),
    Slip(
        _GRAPHITE,
        'yield "m5_rate", rates.five_minutes',
        'yield "m5_rate", rates.one_minute',
        _OF_VALUES,
        "a chart shows another rate than it says",
    ),
    Slip(
        _GRAPHITE,
        'yield "stddev", sample.stddev * unit',
        'yield "stddev", sample.stddev',
        _OF_VALUES,
        "a deviation of a thousandth",
    ),
    Slip(
        _GRAPHITE,
        "(options.host, options.port), TIMEOUT)",
        "(options.host, options.port))",
        _OF_GRAPHITE,
        "a receiver that does not answer holds reports up for minutes",
    ),
    Slip(
        _GRAPHITE,
        "except Exception as error:",
        "except OSError as error:",
        _OF_GRAPHITE,
        "one report that hangs ends them all",
    ),
    Slip(
        _GRAPHITE,
        "int(time.time())",
        "int(time.monotonic())",
        _OF_GRAPHITE,
        "metrics of 1970",
    ),
    Slip(
        _METRICS_JSON,
        '"fiveMinuteRate": rates.five_minutes',
        '"fiveMinuteRate": rates.fifteen_minutes',
        _OF_VALUES,
        "a tool shows another rate than it says",
    ),
    Slip(
        _METRICS_JSON,
        '"stdDev": sample.stddev * scale',
        '"stdDev": sample.stddev',
        _OF_VALUES,
        "a deviation of a billionth",
    ),
    Slip(
        _METRICS_JSON,
        '"m15_rate": rates.fifteen_minutes',
        '"m15_rate": rates.five_minutes',
        _OF_VALUES,
        "a chart shows another rate than it says",
    ),
    Slip(
        _METRICS_JSON,
        '"min": extreme(sample.min)',
        '"min": sample.min',
        _OF_VALUES,
        "a reader of whole numbers fails",
    ),
    Slip(
        _METRICS_JSON,
        "**_report_sample(metric.sample(), round)}",
        "**_report_sample(metric.sample(), float)}",
        _OF_VALUES,
        "a reader of whole numbers fails",
    ),
    Slip(
        _METRICS_JSON,
        "ensure_ascii=False, allow_nan=False",
        "ensure_ascii=False",
        _OF_VALUES,
        "a document that is no JSON",
    ),
    Slip(
        _PROMETHEUS,
        "text = max(text, quality)",
        "text = quality",
        _OF_METRICS,
        "Prometheus is answered JSON",
    ),
    Slip(
        _PROMETHEUS,
        "json = max(json, quality)",
        "json = quality",
        _OF_METRICS,
        "a program of the release is answered text",
    ),
    Slip(
        _PROMETHEUS,
        "quality = min(1.0, max(0.0, float(value)))",
        "quality = float(value)",
        _OF_METRICS,
        "a program of the release is answered text",
    ),
    Slip(
        "engine/net/metrics.py",
        'np.searchsorted(self._bounds, values, side="left")',
        'np.searchsorted(self._bounds, values, side="right")',
        _OF_VALUES,
        "what takes as long as allowed counts as late",
    ),
    Slip(
        _LOGS,
        "json.dumps(shown, default=str)",
        "json.dumps(shown)",
        _OF_VALUES,
        "a line with a path ends the log's thread",
    ),
    Slip(
        _LOGS,
        "int(record.created * 1000)",
        "int(record.created)",
        _OF_VALUES,
        "lines of 1970",
    ),
    Slip(
        _LOGS,
        "(device, inode) == (str(found.st_dev), str(found.st_ino))",
        "inode == str(found.st_ino)",
        _OF_LOGS,
        "a log in a file has priorities in place of times",
    ),
    Slip(
        _LOGS,
        "    except (OSError, ValueError):\n        return False",
        "    except OSError:\n        return False",
        _OF_LOGS,
        "a node whose stderr is closed does not start",
    ),
    Slip(
        _LOGS,
        "        except (OSError, ValueError):\n            return  # the stream",
        "        except OSError:\n            return  # the stream",
        _OF_LOGS,
        "the log's thread ends with the stream",
    ),
)
