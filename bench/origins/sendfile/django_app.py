"""A Django application with django-sendfile2: uvicorn --app-dir FOLDER django_app:application

/NAME       a file of the folder STORAGE, named by the backend BACKEND (xsendfile or nginx)
/outside    names a file that is not in the folder
"""
import os

from django.conf import settings

STORAGE = os.environ["STORAGE"]
settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="of a test", SENDFILE_ROOT=STORAGE,
                   SENDFILE_URL="/protected", SENDFILE_BACKEND="django_sendfile.backends." + os.environ["BACKEND"])

from django.core.asgi import get_asgi_application  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django_sendfile import sendfile  # noqa: E402


def stored(request, name):
    return sendfile(request, os.path.join(STORAGE, name), mimetype="application/x-stored")


def outside(_request):
    return HttpResponse(headers={"X-Sendfile": "/etc/passwd"})


urlpatterns = [path("outside", outside), path("<path:name>", stored)]
application = get_asgi_application()
